// Lines of JSON between the launchers of several nodes, over TCP.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/launch/fd.h"
#include "app/launch/job.h"

namespace fsdp::launch {

struct Endpoint {
  std::string host;
  int port = 0;

  std::string text() const { return host + ":" + std::to_string(port); }
};

// A connection to another launcher. Its end is noticed at once if the process ends, within 30 s if the
// machine or the network does.
class Wire {
 public:
  Wire() = default;
  explicit Wire(Fd socket);

  int fd() const { return socket_.get(); }
  // False from when the other side is gone, or has sent what is no line of JSON or longer than a message can
  // be.
  bool alive() const { return socket_.valid(); }
  // Waits at most seconds.
  void send(const nlohmann::json& message);
  // Messages that have come, without waiting. There may be more: the socket stays readable then. A longer one
  // than `longest` bytes ends the connection.
  std::vector<nlohmann::json> receive(size_t longest = size_t{1} << 24);

 private:
  Fd socket_;
  std::string unread_;
};

// A name that is not known here, maybe not yet.
class UnknownName : public LaunchError {
 public:
  using LaunchError::LaunchError;
};

// Listens on the address of `host` only, or on all if only this machine resolves that name to loopback.
// Invalid: `host` is no address of this machine, or the port is taken; errno says which. Throws UnknownName.
Fd listen_at(const Endpoint& endpoint);

// The next connection; invalid: there is none.
Fd accept_one(const Fd& listener);

// Invalid: nobody listens there (yet). Throws UnknownName.
Fd connect_to(const Endpoint& endpoint, std::chrono::milliseconds patience);

// This machine's address in a connection, as text.
std::string local_address(int socket);

}  // namespace fsdp::launch
