#include "base/host.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/env.h"

namespace fsdp::detail {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string host_id() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat space {};
  const auto inode = ::stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
  return boot + "/" + std::to_string(inode) + "/" + std::to_string(::geteuid()) + "/" +
         env_string("FSDP_HOST_ID").value_or("");
}

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace fsdp::detail
