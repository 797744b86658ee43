// Checks of names, ports and interfaces.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/doctor/finding.h"

namespace fsdp::doctor {

using Variables = std::map<std::string, std::string>;

struct NetworkOptions {
  std::string machine;  // this machine's name
  bool several_hosts = false;
  Variables variables = {};  // of this process: MASTER_ADDR, NCCL_SOCKET_IFNAME, ...
  std::string root = "";     // stands before /proc and /sys, for tests
};

// An interface with an IPv4 or IPv6 address.
struct Interface {
  std::string name;
  std::string address;
  bool is_up = false;
  bool is_loopback = false;
};
std::vector<Interface> interfaces();

// Looks up this machine's name and MASTER_ADDR.
Findings check_names(const NetworkOptions& options);
// MASTER_PORT, and the ports that the kernel gives to clients.
Finding check_ports(const NetworkOptions& options);
// The interfaces, and the variables that choose one of `there`.
Findings check_interfaces(const NetworkOptions& options, const std::vector<Interface>& there);
// Variables that make runs slow.
Findings check_variables(const NetworkOptions& options);

// All of the above.
Findings check_network(const NetworkOptions& options);

}  // namespace fsdp::doctor
