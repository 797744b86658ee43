#include "launch/store_silence.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

namespace fsdp::detail {

namespace {

std::atomic<int> store_port{0};
std::atomic<int64_t> longest_ms{0};

// The port at the other end of a connection; 0: it is none.
int peer_port(int fd) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return 0;
  if (peer.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(peer).sin_port);
  if (peer.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(peer).sin6_port);
  return 0;
}

}  // namespace

void limit_silence_of_store(int port, Milliseconds limit) {
  store_port = port;
  longest_ms = limit.count();
  limit_silence_of_clones();
}

// LibTorch does not tell which descriptors are its clients', so all connections to the store's port count.
void limit_silence_of_clones() {
  if (store_port == 0 || longest_ms <= 0) return;
  const timeval limit{.tv_sec = longest_ms / 1000, .tv_usec = longest_ms % 1000 * 1000};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (peer_port(fd) == store_port) ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
}

}  // namespace fsdp::detail
