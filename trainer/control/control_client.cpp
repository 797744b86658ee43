#include "trainer/control/control_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "app/launch/fd.h"

namespace fsdp::control {

namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;
constexpr size_t kLongestAnswer = size_t{1} << 20;
constexpr auto kFirstWord = std::chrono::seconds(2), kNextWord = std::chrono::seconds(10);

launch::Fd connect_to(const ControlAddress& to) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(to.port));
  launch::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::inet_pton(AF_INET, to.host.c_str(), &address.sin_addr) != 1 ||
      ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const std::string elsewhere =
        to.machine.empty() || to.machine == host_name()
            ? "its processes have ended, perhaps by SIGKILL. `fsdp train --resume auto` goes on with it"
            : "its rank 0 was on " + to.machine + ", and this is " + host_name() + ": ask there";
    throw NoAnswer("the run does not listen at " + to.host + ":" + std::to_string(to.port) + ": " +
                   elsewhere);
  }
  return socket;
}

std::string receive_line(const launch::Fd& socket, Clock::time_point until,
                         const std::function<void()>& still_waiting) {
  std::string text;
  std::array<char, 4096> part{};
  auto speak_at = still_waiting ? Clock::now() + kFirstWord : until;
  while (text.find('\n') == std::string::npos) {
    const auto next = std::min(until, speak_at);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    pollfd wait{.fd = socket.get(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && Clock::now() >= until) throw NoAnswer("the run did not answer in time");
    if (ready == 0) {
      if (still_waiting) still_waiting();
      speak_at = Clock::now() + kNextWord;
      continue;
    }
    const auto n = ::recv(socket.get(), part.data(), part.size(), 0);
    if (n <= 0) throw NoAnswer("the run ended before it answered");
    text.append(part.data(), static_cast<size_t>(n));
    if (text.size() > kLongestAnswer) break;
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

Json ask(const ControlAddress& address, const std::string& what, std::chrono::milliseconds patience,
         const std::function<void()>& still_waiting) {
  const auto until = Clock::now() + patience;
  const launch::Fd socket = connect_to(address);
  const std::string line = Json({{"token", address.token}, {"do", what}}).dump() + "\n";
  if (::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    throw NoAnswer(std::string("the request could not be sent: ") + std::strerror(errno));
  Json answer = Json::parse(receive_line(socket, until, still_waiting), nullptr, false);
  if (!answer.is_object() || !answer.contains("ok"))
    throw NoAnswer("what listens at " + address.host + ":" + std::to_string(address.port) +
                   " is not this run: its processes have ended, and another program has the port");
  return answer;
}

}  // namespace fsdp::control
