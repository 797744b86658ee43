#include "app/launch/nodes/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "app/launch/job.h"

namespace fsdp::launch {

namespace {

using Json = nlohmann::json;

constexpr int kSecondsToSend = 10;
// A peer without an answer for kIdle + kTimes * kInterval seconds is gone.
constexpr int kIdle = 5, kInterval = 5, kTimes = 5;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int code = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  if (code != 0)
    throw UnknownName("the nodes are to meet at " + endpoint.text() + ", and " + endpoint.host +
                      " cannot be resolved: " + ::gai_strerror(code) +
                      ". --rdzv-endpoint takes a name or address that all nodes know");
  return Addresses(list);
}

void set(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof(value));
}

bool connected(int socket, std::chrono::milliseconds patience) {
  pollfd wait{.fd = socket, .events = POLLOUT, .revents = 0};
  if (::poll(&wait, 1, static_cast<int>(patience.count())) != 1) return false;
  int code = 0;
  socklen_t size = sizeof(code);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &size) == 0 && code == 0;
}

bool is_loopback(const addrinfo& one) {
  if (one.ai_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(one.ai_addr)->sin6_addr) != 0;
  const auto& four = *reinterpret_cast<const sockaddr_in*>(one.ai_addr);
  return one.ai_family == AF_INET && ntohl(four.sin_addr.s_addr) >> 24 == 127;
}

// Debian resolves a machine's own name to 127.0.1.1, and other machines resolve it to its address on the
// network: they could not reach a socket that listens where this one resolves the name to.
bool is_own_name(const std::string& host, const Addresses& resolved) {
  in6_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) == 1 || ::inet_pton(AF_INET6, host.c_str(), &address) == 1)
    return false;
  if (host == "localhost" || host.starts_with("localhost.") || host.ends_with(".localhost")) return false;
  for (const addrinfo* one = resolved.get(); one != nullptr; one = one->ai_next)
    if (!is_loopback(*one)) return false;
  return true;
}

Addresses everywhere(int family, int port) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (::getaddrinfo(nullptr, std::to_string(port).c_str(), &hints, &list) != 0) list = nullptr;
  return Addresses(list);
}

// An invalid one, and errno, if that is not possible.
Fd listen_on(const addrinfo& at) {
  Fd socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.ai_family == AF_INET6) set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  constexpr int kWaiting = 128;
  const bool listens =
      ::bind(socket.get(), at.ai_addr, at.ai_addrlen) == 0 && ::listen(socket.get(), kWaiting) == 0;
  return listens ? std::move(socket) : Fd();
}

// The kernel may connect a socket to itself, where the port is one that it also gives to clients.
bool is_itself(int socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof(here), there_size = sizeof(there);
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_size) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&there), &there_size) == 0 &&
         here_size == there_size && std::memcmp(&here, &there, here_size) == 0;
}

}  // namespace

Wire::Wire(Fd socket) : socket_(std::move(socket)) {
  const int fd = socket_.get();
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kInterval);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kTimes);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (kIdle + kInterval * kTimes) * 1000);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  const timeval most{.tv_sec = kSecondsToSend, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
}

void Wire::send(const Json& message) {
  const std::string line = message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (size_t at = 0; alive() && at < line.size();) {
    const auto n = ::send(fd(), line.data() + at, line.size() - at, MSG_NOSIGNAL);
    if (n > 0)
      at += static_cast<size_t>(n);
    else if (errno != EINTR)
      socket_.close();
  }
}

std::vector<Json> Wire::receive(size_t longest) {
  std::vector<Json> messages;
  std::array<char, 65536> part{};
  const auto n = alive() ? ::recv(fd(), part.data(), part.size(), MSG_DONTWAIT) : 0;
  if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return messages;
  if (n > 0) unread_.append(part.data(), static_cast<size_t>(n));
  size_t begin = 0;
  bool understood = n > 0;
  for (size_t end = 0; understood && (end = unread_.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    Json message = Json::parse(unread_.begin() + static_cast<std::ptrdiff_t>(begin),
                               unread_.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    understood = message.is_object() && end - begin <= longest;
    if (understood) messages.push_back(std::move(message));
  }
  unread_.erase(0, begin);
  if (!understood || unread_.size() > longest) socket_.close();
  return messages;
}

Fd listen_at(const Endpoint& endpoint) {
  Addresses addresses = resolve(endpoint);
  if (is_own_name(endpoint.host, addresses)) {
    for (const int family : {AF_INET6, AF_INET}) {  // a kernel may have no IPv6
      addresses = everywhere(family, endpoint.port);
      if (!addresses) continue;
      if (Fd socket = listen_on(*addresses); socket.valid()) return socket;
    }
    return Fd();
  }
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next)
    if (Fd socket = listen_on(*one); socket.valid()) return socket;
  return Fd();
}

Fd accept_one(const Fd& listener) { return Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

Fd connect_to(const Endpoint& endpoint, std::chrono::milliseconds patience) {
  const Addresses addresses = resolve(endpoint);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    Fd socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int code = ::connect(socket.get(), one->ai_addr, one->ai_addrlen);
    if (code == 0 || (errno == EINPROGRESS && connected(socket.get(), patience)))
      return is_itself(socket.get()) ? Fd() : std::move(socket);
  }
  return Fd();
}

std::string local_address(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> text{};
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(socket, generic, &size) != 0 ||
      ::getnameinfo(generic, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return text.data();
}

}  // namespace fsdp::launch
