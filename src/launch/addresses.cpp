#include "launch/addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace fsdp::detail {

namespace {

bool is_address(const std::string& host) {
  in_addr four{};
  in6_addr six{};
  return ::inet_pton(AF_INET, host.c_str(), &four) == 1 || ::inet_pton(AF_INET6, host.c_str(), &six) == 1;
}

bool names_this_machine_only(const std::string& host) {
  return host == "localhost" || host == "ip6-localhost" || host == "ip6-loopback" ||
         host.starts_with("localhost.") || host.ends_with(".localhost");
}

}  // namespace

bool is_loopback(const std::string& address) {
  in_addr four{};
  if (::inet_pton(AF_INET, address.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six{};
  if (::inet_pton(AF_INET6, address.c_str(), &six) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

bool must_listen_everywhere(const std::string& host, const std::vector<std::string>& resolved,
                            bool several_hosts) {
  return several_hosts && !is_address(host) && !names_this_machine_only(host) && !resolved.empty() &&
         std::all_of(resolved.begin(), resolved.end(), is_loopback);
}

}  // namespace fsdp::detail
