#include "app/launch/nodes/coordinator.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "app/launch/environment.h"
#include "app/launch/job.h"
#include "app/launch/nodes/outcome_json.h"
#include "app/launch/quiet_thread.h"

namespace fsdp::launch {

namespace {

using Json = nlohmann::json;
using Kind = Order::Kind;

constexpr auto kTimeToGreet = std::chrono::seconds(10);
constexpr auto kTimeToTell = std::chrono::seconds(5);
constexpr size_t kMostPeers = 4096;
constexpr size_t kLongestGreeting = 4096;
constexpr int kMostStrangers = 128;  // that have not greeted: they take file descriptors from the ranks

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::start:
      return "start";
    case Kind::wait:
      return "wait";
    case Kind::fail:
      return "fail";
    case Kind::leave:
      return "leave";
    case Kind::over:
      return "over";
    default:
      return "refuse";
  }
}

std::string text_in(const Json& message, const char* key) {
  const auto at = message.find(key);
  return at != message.end() && at->is_string() ? at->get<std::string>() : "";
}

int number_in(const Json& message, const char* key, int otherwise) {
  const auto at = message.find(key);
  return at != message.end() && at->is_number_integer() ? at->get<int>() : otherwise;
}

// A socket pair, or a LaunchError.
std::pair<Fd, Fd> pair_of_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw LaunchError(std::string("cannot make a socket: ") + std::strerror(errno));
  return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

Coordinator::Coordinator(Fd listener, std::string run, AssemblyRules rules)
    : listener_(std::move(listener)),
      run_(std::move(run)),
      ranks_run_(run_ == Job().run_id ? random_run_id() : run_),
      assembly_(std::move(rules), Clock::now()) {
  auto [mine, theirs] = pair_of_sockets();
  own_ = Wire(std::move(theirs));
  peers_[0].wire = Wire(std::move(mine));
  std::tie(wake_read_, wake_write_) = pair_of_sockets();
  thread_ = quiet_thread([this] {
    try {
      serve();
    } catch (const std::exception&) {
      peers_.clear();  // to the nodes this is the end of their coordinator
    }
  });
}

Coordinator::~Coordinator() {
  wake_write_.close();
  thread_.join();
}

void Coordinator::serve() {
  std::optional<Clock::time_point> leave_at;
  for (;;) {
    std::vector<pollfd> wait{
        {.fd = wake_read_.get(), .events = static_cast<short>(leave_at ? 0 : POLLIN), .revents = 0},
        {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const auto& [number, peer] : peers_)
      wait.push_back({.fd = peer.wire.fd(), .events = POLLIN, .revents = 0});
    constexpr int kLongest = 1000;
    int most = kLongest;
    if (const auto next = assembly_.next_tick()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
      most = static_cast<int>(std::clamp<int64_t>(left, 0, kLongest));
    }
    if (leave_at) most = std::min(most, 100);
    ::poll(wait.data(), wait.size(), most);
    if (wait[0].revents != 0 && !leave_at) leave_at = Clock::now() + kTimeToTell;
    if (wait[1].revents != 0) accept_new();
    std::vector<int> numbers;
    for (const auto& [number, peer] : peers_) numbers.push_back(number);
    for (const int number : numbers) listen_to(number, peers_[number]);
    drop_the_gone();
    carry_out(assembly_.tick(Clock::now()));
    if (leave_at && (all_told() || Clock::now() >= *leave_at)) return;
  }
}

void Coordinator::accept_new() {
  errno = 0;
  for (Fd socket = accept_one(listener_); socket.valid(); socket = accept_one(listener_)) {
    if (peers_.size() >= kMostPeers) continue;
    peers_[next_++].wire = Wire(std::move(socket));
    const auto strange = [](const auto& one) { return one.first != 0 && is_stranger(one.second); };
    if (std::count_if(peers_.begin(), peers_.end(), strange) <= kMostStrangers) continue;
    const auto oldest = std::find_if(peers_.begin(), peers_.end(), strange);
    listen_to(oldest->first, oldest->second);  // it may be a node whose greeting has come
    if (is_stranger(oldest->second)) peers_.erase(oldest);
  }
  // Without a free descriptor the listener stays readable.
  if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

void Coordinator::listen_to(int number, Peer& peer) {
  for (const Json& message : peer.greeted ? peer.wire.receive() : peer.wire.receive(kLongestGreeting)) {
    const std::string is = text_in(message, "is");
    if (!peer.greeted)
      greet(number, peer, message);
    else if (is == "failing")
      carry_out(assembly_.failing(number));
    else if (is == "ended" && message.contains("outcome") && message["outcome"].is_object())
      carry_out(assembly_.ended(number, outcome_from(message["outcome"]), Clock::now()));
  }
}

void Coordinator::greet(int number, Peer& peer, const Json& message) {
  if (text_in(message, "is") != "hello") {
    peer.wire = Wire();
    return;
  }
  peer.greeted = true;
  if (const std::string run = text_in(message, "run"); run != run_)
    return carry_out({{.node = number,
                       .kind = Kind::refuse,
                       .text = "--rdzv-id: found '" + run + "', but the run at this endpoint has another"}});
  carry_out(assembly_.joined(number,
                             {.host = text_in(message, "host"),
                              .ranks = number_in(message, "ranks", 1),
                              .place = number_in(message, "place", -1)},
                             Clock::now()));
}

// And those that say nothing.
void Coordinator::drop_the_gone() {
  std::vector<int> gone;
  const auto now = Clock::now();
  for (const auto& [number, peer] : peers_)
    if (!peer.wire.alive() || (number != 0 && is_stranger(peer) && now > peer.since + kTimeToGreet))
      gone.push_back(number);
  for (const int number : gone) {
    peers_.erase(number);
    carry_out(assembly_.lost(number, now));
  }
}

void Coordinator::carry_out(const Assembly::Orders& orders) {
  const bool starts =
      std::any_of(orders.begin(), orders.end(), [](const Order& order) { return order.kind == Kind::start; });
  if (starts) {
    port_.reset();
    port_.emplace(Reach::all_interfaces);
  }
  for (const Order& order : orders) {
    const auto peer = peers_.find(order.node);
    if (peer == peers_.end()) continue;
    Json message = {{"is", name_of(order.kind)}, {"text", order.text}};
    if (order.kind == Kind::start)
      message.update({{"place", order.place},
                      {"nodes", order.nodes},
                      {"restarts", order.restarts},
                      {"port", port_->number()},
                      {"run", ranks_run_}});
    if (order.kind == Kind::over) message["outcome"] = to_json(assembly_.outcome());
    peer->second.wire.send(message);
    if (order.kind == Kind::over || order.kind == Kind::refuse) peer->second.done = true;
    peer->second.refused = peer->second.refused || order.kind == Kind::refuse;
  }
}

bool Coordinator::all_told() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const auto& one) { return one.second.done || !one.second.greeted; });
}

}  // namespace fsdp::launch
