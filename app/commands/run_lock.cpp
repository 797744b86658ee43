#include "app/commands/run_lock.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <iostream>
#include <thread>

#include "app/output.h"
#include "trainer/watch/run_folder.h"

namespace fsdp::app {

namespace {

// True if a process of this machine has locked the file. /proc/locks has a line for each lock, with the
// number of the file's inode (the device before it is another one than stat() tells on btrfs and overlay): 1:
// FLOCK  ADVISORY  WRITE 4711 fe:00:131329 0 EOF
bool is_locked_here(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return true;
  const std::string inode = ":" + std::to_string(status.st_ino) + " ";
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);)
    if (line.find(inode) != std::string::npos) return true;
  return !locks.eof();
}

}  // namespace

RunLock::RunLock(const std::string& folder, bool waits) {
  if (folder.empty()) return;
  watch::RunFolder{folder}.make();
  // A file, since a lock on a folder of NFS holds on its own host only.
  const std::string path = folder + "/.train-lock";
  fd_ = launch::Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd_.valid()) throw IoError("open", path, errno, "the folder of the run");
  using Clock = std::chrono::steady_clock;
  const auto tries_for = [&](std::chrono::seconds patience) {
    for (const auto until = Clock::now() + patience;;) {
      if (::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
      if (Clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  };
  // Ranks that were just killed hold it until the kernel has freed their memory.
  taken_ = !tries_for(std::chrono::seconds(2));
  if (!taken_ || !waits || is_locked_here(fd_.get())) return;
  constexpr std::chrono::seconds kLease{120};
  std::cerr
      << "fsdp: " << printable(folder)
      << " is locked by a process of another machine, or of one that is gone. Waiting for it, for at most "
      << kLease.count() << " s" << std::endl;
  taken_ = !tries_for(kLease);
}

void RunLock::keep_on_exec() const {
  if (fd_.valid()) ::fcntl(fd_.get(), F_SETFD, 0);
}

}  // namespace fsdp::app
