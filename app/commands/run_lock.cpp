#include "app/commands/run_lock.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "trainer/watch/run_folder.h"

namespace fsdp::app {

RunLock::RunLock(const std::string& folder) {
  if (folder.empty()) return;
  watch::RunFolder{folder}.make();
  // A file, since a lock on a folder of NFS holds on its own host only.
  const std::string path = folder + "/.train-lock";
  fd_ = launch::Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd_.valid()) throw IoError("open", path, errno, "the folder of the run");
  const auto locked = [&] { return ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; };
  // Ranks that were just killed hold it until the kernel has freed their memory.
  constexpr int kTries = 40;
  for (int i = 0; i < kTries && !locked(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  taken_ = !locked();
}

void RunLock::keep_on_exec() const {
  if (fd_.valid()) ::fcntl(fd_.get(), F_SETFD, 0);
}

}  // namespace fsdp::app
