#include "app/commands/run_lock.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/file.h>

#include <cerrno>

#include "trainer/watch/run_folder.h"

namespace fsdp::app {

RunLock::RunLock(const std::string& folder) {
  if (folder.empty()) return;
  watch::RunFolder{folder}.make();
  fd_ = launch::Fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd_.valid()) throw IoError("open", folder, errno, "the folder of the run");
  taken_ = ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

void RunLock::keep_on_exec() const {
  if (fd_.valid()) ::fcntl(fd_.get(), F_SETFD, 0);
}

}  // namespace fsdp::app
