#include "comm/gloo/endpoint.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>

#include "base/env.h"
#include "base/fd.h"
#include "comm/await.h"
#include "launch/addresses.h"

namespace fsdp::detail {

namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kAnyPort = "9";  // connecting a datagram socket sends nothing

// The host that serves the store; loopback if the store is in this process.
std::string store_host(const GroupInfo& info) {
  auto store = info.store;
  if (const auto prefixed = c10::dynamic_intrusive_pointer_cast<::c10d::PrefixStore>(store))
    store = prefixed->getUnderlyingNonPrefixStore();
  const auto tcp = c10::dynamic_intrusive_pointer_cast<::c10d::TCPStore>(store);
  return tcp ? tcp->getHost() : kLoopback;
}

std::string address_key(int rank) { return "gloo/address/" + std::to_string(rank); }

// Rank 0's own machine may resolve MASTER_ADDR to loopback, which other hosts cannot reach. Then the route to
// a rank of another host counts.
std::string reachable(const GroupInfo& info, const std::string& mine) {
  publish_key(info, address_key(info.rank), mine);
  const std::string& here = info.peers[static_cast<size_t>(info.rank)].host_id;
  std::string found = mine;
  for (int r = 0; r < info.size; ++r) {
    const std::string theirs = await_key(info, address_key(r), r);
    const bool other_host = info.peers[static_cast<size_t>(r)].host_id != here;
    if (other_host && is_loopback(found) && !theirs.empty() && !is_loopback(theirs))
      found = address_toward(theirs);
  }
  return found;
}

}  // namespace

std::string GlooEndpoint::text() const {
  if (interfaces.empty()) return address;
  std::string names;
  for (const auto& name : interfaces) names += (names.empty() ? "" : ",") + name;
  return names;
}

std::string address_toward(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), kAnyPort, &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    const Fd fd(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[NI_MAXHOST] = {};
    if (fd.valid() && ::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) == 0)
      return text;
  }
  return "";
}

std::vector<std::string> interface_names(const std::string& list) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) names.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

GlooEndpoint choose_endpoint(const GroupInfo& info) {
  const auto named = interface_names(env_string("GLOO_SOCKET_IFNAME").value_or(""));
  const std::string host = store_host(info);
  const std::string address = reachable(info, address_toward(host));
  if (!named.empty()) return {.interfaces = named, .address = {}};
  if (address.empty())
    throw RendezvousError(
        name_of(info, info.rank) + " has no route to " + host +
        " (MASTER_ADDR), so gloo has no address to listen at. Set MASTER_ADDR to an address "
        "that this host reaches, or GLOO_SOCKET_IFNAME to the network interface to use");
  return {.interfaces = {}, .address = address};
}

}  // namespace fsdp::detail
