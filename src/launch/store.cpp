#include "launch/store.h"

#include <fsdp/error.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <poll.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "launch/addresses.h"
#include "launch/store_silence.h"

namespace fsdp::detail {

namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0)
    throw RendezvousError("the address '" + host + "' of the store (MASTER_ADDR) cannot be resolved: " +
                          ::gai_strerror(error) + ". Set MASTER_ADDR to the host name or address of rank 0.");
  return Addresses(list);
}

// A name that is not known yet is asked for again, for some time.
Addresses resolve_within(const std::string& host, int port, Milliseconds timeout) {
  constexpr Milliseconds kTimeToResolve{60000};
  const auto deadline = Clock::now() + std::min(timeout, kTimeToResolve);
  for (;;) {
    try {
      return resolve(host, port);
    } catch (const RendezvousError&) {
      if (Clock::now() >= deadline) throw;
      std::this_thread::sleep_for(Milliseconds{100});
    }
  }
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  const auto port = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

[[noreturn]] void refuse_port(const std::string& host, int port) {
  const std::string place = host + ":" + std::to_string(port);
  if (errno == EADDRINUSE)
    throw RendezvousError("rank 0 cannot serve the store at " + place +
                          ": the port is in use. Set MASTER_PORT to a free one on every rank, or end the "
                          "process that has it (this one, if it called fsdp::init() before).");
  if (errno == EADDRNOTAVAIL)
    throw RendezvousError(
        "rank 0 cannot serve the store at " + place +
        ": no interface of this host has that address. MASTER_ADDR must name the host of rank 0.");
  throw RendezvousError("rank 0 cannot serve the store at " + place + ": " + std::strerror(errno));
}

bool listens(const Fd& fd, const sockaddr* address, socklen_t length) {
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  return ::bind(fd.get(), address, length) == 0 && ::listen(fd.get(), SOMAXCONN) == 0;
}

Listener listener(Fd fd) {
  const int port = port_of(fd.get());
  return {std::move(fd), port};
}

// IPv6 with IPv4, or IPv4 alone if the kernel has no IPv6.
Listener listen_everywhere(const std::string& host, int port) {
  const auto number = htons(static_cast<uint16_t>(port));
  if (Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)); fd.valid()) {
    const int off = 0;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = number;
    if (listens(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any))) return listener(std::move(fd));
  }
  if (Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); fd.valid()) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = number;
    if (listens(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any))) return listener(std::move(fd));
  }
  refuse_port(host, port);
}

std::vector<std::string> numeric(const Addresses& addresses) {
  std::vector<std::string> found;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    char text[NI_MAXHOST] = {};
    if (::getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      found.emplace_back(text);
  }
  return found;
}

}  // namespace

Listener listen_on(const std::string& host, int port, bool several_hosts) {
  const Addresses addresses = resolve(host, port);
  if (must_listen_everywhere(host, numeric(addresses), several_hosts)) return listen_everywhere(host, port);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    Fd fd(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (fd.valid() && listens(fd, a->ai_addr, a->ai_addrlen)) return listener(std::move(fd));
  }
  refuse_port(host, port);
}

StorePtr serve_store(const std::string& host, Listener listener, Milliseconds timeout) {
  ::c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(listener.port);
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.masterListenFd = listener.fd.release();
  return c10::make_intrusive<::c10d::TCPStore>(host, options);
}

// LibTorch's client logs a lot on stderr while no server answers, so this tries first, quietly. The
// connection is kept until the client has its own: a server that just starts does not expect a closed one.
Fd reach_server(const std::string& host, int port, Milliseconds timeout) {
  const auto start = Clock::now();
  const auto left = [&] { return std::max(Milliseconds{0}, timeout - elapsed_since(start)); };
  // The name of a pod may become known later, and its address may change.
  constexpr Milliseconds kAddressLasts{1000};
  Addresses addresses = resolve_within(host, port, left());
  for (auto resolved = Clock::now();;) {
    if (elapsed_since(resolved) > kAddressLasts) {
      addresses = resolve_within(host, port, left());
      resolved = Clock::now();
    }
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      Fd fd(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
      if (!fd.valid()) continue;
      if (::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return fd;
      pollfd entry{.fd = fd.get(), .events = POLLOUT, .revents = 0};
      int error = errno == EINPROGRESS ? 0 : errno;
      socklen_t length = sizeof(error);
      if (error == 0 &&
          ::poll(&entry, 1, static_cast<int>(std::min(left(), Milliseconds{1000}).count())) == 1 &&
          ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0)
        return fd;
    }
    if (left().count() == 0) return {};
    std::this_thread::sleep_for(Milliseconds{20});
  }
}

StorePtr connect_store(const std::string& host, int port, Milliseconds timeout, const std::string& who) {
  const std::string place = host + ":" + std::to_string(port);
  const Fd reached = reach_server(host, port, timeout);
  if (!reached.valid())
    throw RendezvousError(who + " could not reach the store at " + place + " within " +
                          std::to_string(timeout.count()) +
                          " ms: rank 0, which serves it, is missing or not reachable");
  ::c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    StorePtr store = c10::make_intrusive<::c10d::TCPStore>(host, options);
    limit_silence_of_store(port, timeout);
    return store;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RendezvousError(who + " could not talk to the store at " + place +
                          ": what answers there is not the store of rank 0 (" +
                          text.substr(0, text.find('\n')) + ")");
  }
}

StorePtr open_store(const Identity& me, Milliseconds timeout) {
  if (me.size == 1 && !me.agent_store) return c10::make_intrusive<::c10d::HashStore>();
  const bool one_host = me.local_size == me.size;
  if (me.rank == 0 && !me.agent_store)
    return serve_store(me.master_addr, listen_on(me.master_addr, me.master_port, !one_host), timeout);
  return connect_store(me.master_addr, me.master_port, timeout, "rank " + std::to_string(me.rank));
}

}  // namespace fsdp::detail
