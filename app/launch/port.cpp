#include "app/launch/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "app/launch/job.h"

namespace fsdp::launch {

ReservedPort::ReservedPort(Reach reach) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(reach == Reach::this_machine ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int on = 1;
  // Bound first: the kernel then gives a port that nobody has, not one that others left reusable.
  if (!socket_.valid() || ::bind(socket_.get(), generic, length) != 0 ||
      ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::getsockname(socket_.get(), generic, &length) != 0)
    throw LaunchError(std::string("cannot find a free port: ") + std::strerror(errno));
  number_ = ntohs(address.sin_port);
}

void require_free_port(int number) {
  const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(number));
  const int on = 1;
  ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      ::listen(probe.get(), 1) == 0)
    return;
  throw LaunchError("rank 0 cannot listen on port " + std::to_string(number) +
                    " (MASTER_PORT): " + std::strerror(errno) +
                    ". Another job may use it: choose another port, or name none on a single machine");
}

}  // namespace fsdp::launch
