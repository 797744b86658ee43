#include "base/host.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
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

double processor_quota(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  file >> quota >> period;
  return quota.empty() || quota == "max" || period <= 0 ? 0 : std::atof(quota.c_str()) / period;
}

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int ours = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const double quota = processor_quota();
  return quota > 0 ? std::clamp(static_cast<int>(quota), 1, ours) : ours;
}

}  // namespace fsdp::detail
