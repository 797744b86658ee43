// Facts about this machine and process.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::detail {

std::string host_name();

// Equal exactly for processes that can share memory through /proc: same boot, same pid namespace, same user.
// FSDP_HOST_ID, where ranks have different ones, makes them count as on different hosts.
std::string host_id();

// Processors this process may run on.
int usable_cpus();

// The processors that a container with the control group in `folder` may use at a time; 0: all.
double processor_quota(const std::string& folder = "/sys/fs/cgroup");

}  // namespace fsdp::detail
