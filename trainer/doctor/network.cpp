#include "trainer/doctor/network.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "trainer/doctor/text_files.h"

namespace fsdp::doctor {

namespace {

std::string variable(const NetworkOptions& options, const std::string& name) {
  const auto found = options.variables.find(name);
  return found == options.variables.end() ? "" : found->second;
}

std::string listed(const std::vector<Interface>& all) {
  std::string text;
  for (const Interface& one : all)
    text += (text.empty() ? "" : ", ") + one.name + " " + one.address + (one.is_up ? "" : " (down)");
  return text;
}

// NCCL: prefixes, "=name" for exact names, "^" before names to leave out. gloo: names.
bool names_one(std::string list, const std::vector<Interface>& there, bool takes_prefixes) {
  if (takes_prefixes && list.starts_with("^")) return true;
  const bool is_exact = !takes_prefixes || list.starts_with("=");
  if (list.starts_with("=")) list.erase(0, 1);
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');)
    for (const Interface& one : there)
      if (one.is_up && (is_exact ? one.name == name : one.name.starts_with(name))) return true;
  return false;
}

}  // namespace

std::vector<Interface> interfaces() {
  struct Free {
    void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
  };
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, Free> owner(list);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> text{};
    const auto size = static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (::getnameinfo(one->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    if (std::string(text.data()).starts_with("fe80:")) continue;  // link-local: no use to a run
    found.push_back({.name = one->ifa_name,
                     .address = text.data(),
                     .is_up = (one->ifa_flags & IFF_UP) != 0,  // IFF_RUNNING comes up to a second late
                     .is_loopback = (one->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

Finding check_ports(const NetworkOptions& options) {
  Finding found{.subject = "ports"};
  int first = 0, last = 0;
  std::istringstream range(read_text(options.root + "/proc/sys/net/ipv4/ip_local_port_range"));
  range >> first >> last;
  found.text = "clients get " + std::to_string(first) + " to " + std::to_string(last);
  const std::string port_text = variable(options, "MASTER_PORT");
  if (!port_text.empty()) found.text = "MASTER_PORT " + port_text + "; " + found.text;
  const int port = std::atoi(port_text.c_str());
  const bool is_reserved =
      !read_text(options.root + "/proc/sys/net/ipv4/ip_local_reserved_ports").empty();  // which: not parsed
  if (options.several_hosts && port >= first && port <= last && !is_reserved) {
    found.level = Level::warning;
    found.advice = "Any program that connects somewhere may get port " + port_text +
                   " before rank 0 does. Choose a port below " + std::to_string(first) +
                   ", or type `sysctl net.ipv4.ip_local_reserved_ports=" + port_text +
                   "` on the machine of rank 0";
  }
  constexpr int kFew = 1000;
  if (last > 0 && last - first < kFew) {
    found.level = Level::warning;
    found.advice =
        "Every pair of ranks of several machines needs a few. Type `sysctl "
        "net.ipv4.ip_local_port_range=\"32768 60999\"`";
  }
  return found;
}

Findings check_interfaces(const NetworkOptions& options, const std::vector<Interface>& there) {
  Finding found{.subject = "interfaces", .text = there.empty() ? "none with an address" : listed(there)};
  const bool has_loopback = std::any_of(there.begin(), there.end(),
                                        [](const Interface& one) { return one.is_loopback && one.is_up; });
  const bool has_other = std::any_of(there.begin(), there.end(),
                                     [](const Interface& one) { return !one.is_loopback && one.is_up; });
  if (!has_loopback) {
    found.level = Level::problem;
    found.text += "; loopback is down";
    found.advice = "Ranks of one machine meet at 127.0.0.1: type `ip link set lo up`";
  } else if (options.several_hosts && !has_other) {
    found.level = Level::problem;
    found.advice =
        "No interface reaches another machine: a container needs --network=host, or a network of its own";
  }
  Findings findings = {found};
  for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const std::string value = variable(options, name);
    if (value.empty() || names_one(value, there, std::string(name).starts_with("NCCL"))) continue;
    findings.push_back({.level = Level::problem,
                        .subject = "interfaces",
                        .text = std::string(name) + "=" + value + " names no interface that is up here",
                        .advice = "Unset it, or set it to one of: " + listed(there)});
  }
  return findings;
}

Findings check_variables(const NetworkOptions& options) {
  struct Slow {
    const char *name, *value, *why;
  };
  constexpr Slow kSlow[] = {
      {"CUDA_LAUNCH_BLOCKING", "1", "the host waits for every kernel, so nothing overlaps"},
      {"NCCL_P2P_DISABLE", "1", "GPUs of one machine talk through host memory instead of NVLink or PCIe"},
      {"NCCL_SHM_DISABLE", "1", "GPUs of one machine talk through sockets"},
      {"NCCL_IB_DISABLE", "1", "machines talk over TCP even if there is InfiniBand"}};
  Findings findings;
  for (const Slow& slow : kSlow)
    if (variable(options, slow.name) == slow.value)
      findings.push_back({.level = Level::warning,
                          .subject = "variables",
                          .text = std::string(slow.name) + "=" + slow.value + ": " + slow.why,
                          .advice = std::string("Unset ") + slow.name + " unless you look for an error"});
  return findings;
}

Findings check_network(const NetworkOptions& options) {
  Findings findings = check_names(options);
  findings.push_back(check_ports(options));
  for (Finding& one : check_interfaces(options, interfaces())) findings.push_back(std::move(one));
  for (Finding& one : check_variables(options)) findings.push_back(std::move(one));
  return findings;
}

}  // namespace fsdp::doctor
