#include "app/launch/nodes/run_nodes.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "app/launch/environment.h"
#include "app/launch/nodes/coordinator.h"
#include "app/launch/nodes/outcome_json.h"
#include "app/launch/signals.h"

namespace fsdp::launch {

namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kNotStarted = 2;
constexpr int kPeerLost = 5;
constexpr auto kTimeToResolve = std::chrono::seconds(60);  // a pod's name exists a while after the pod
constexpr auto kNextTry = std::chrono::milliseconds(200);

// This node's connection to the coordinator.
class Member final : public Elsewhere {
 public:
  explicit Member(Wire wire) : wire_(std::move(wire)) {}

  int fd() const override { return wire_.fd(); }
  bool alive() const { return wire_.alive(); }
  void send(const Json& message) { wire_.send(message); }
  void failed_here() override { send({{"is", "failing"}}); }
  Word next() override {
    fetch();
    while (!messages_.empty()) {
      const std::string is = messages_.front().value("is", "");
      if (is != "fail" && is != "leave") return Word::none;  // for take(), when the ranks have ended
      why_ = messages_.front().value("text", "");
      messages_.pop_front();
      return is == "fail" ? Word::failed : Word::leave;
    }
    return alive() || told_gone_ ? Word::none : gone();
  }
  std::string why() const override { return why_; }
  // The next message that is there and not about a round that has ended.
  std::optional<Json> take() {
    fetch();
    while (!messages_.empty()) {
      Json message = std::move(messages_.front());
      messages_.pop_front();
      const std::string is = message.value("is", "");
      if (is != "fail" && is != "leave") return message;
    }
    return std::nullopt;
  }

 private:
  void fetch() {
    for (Json& message : wire_.receive()) messages_.push_back(std::move(message));
  }
  Word gone() {
    told_gone_ = true;
    return Word::failed;
  }

  Wire wire_;
  std::deque<Json> messages_;
  std::string why_;
  bool told_gone_ = false;
};

// Waits until `fd` is readable or `until` has come. The signal that came meanwhile, else 0.
int wait(const SignalEvents& signals, int fd, Clock::time_point until) {
  pollfd both[] = {{.fd = signals.fd(), .events = POLLIN, .revents = 0},
                   {.fd = fd, .events = POLLIN, .revents = 0}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  ::poll(both, 2, static_cast<int>(std::max<int64_t>(left, 0)));
  return signals.next();
}

Outcome interrupted(int signal) {
  Outcome outcome;
  outcome.interrupted_by = signal;
  outcome.abandoned = true;  // no rank has begun: 128 + signal
  return outcome;
}

// Makes `job` that of another node: ranks whose output is shown move along.
void move_to_node(Job& job, int node) {
  const int by = (node - job.node_rank) * job.ranks;
  for (int& rank : job.shown) rank += by;
  std::map<int, unsigned> streams;
  for (const auto& [rank, shows] : job.streams) streams[rank + by] = shows;
  job.streams = std::move(streams);
  job.node_rank = node;
}

class NodeRun {
 public:
  NodeRun(Job job, const Meeting& meeting, const Tell& tell)
      : job_(std::move(job)), meeting_(meeting), tell_(tell) {}

  Outcome run() {
    if (const auto stopped = meet()) return interrupted(*stopped);
    member_->send({{"is", "hello"},
                   {"run", job_.run_id},
                   {"host", host_name()},
                   {"ranks", job_.ranks},
                   {"place", meeting_.place}});
    for (;;) {
      const auto [signal, message] = next_message();
      if (signal != 0) return interrupted(signal);
      if (!message) return lost();
      const std::string is = message->value("is", ""), text = message->value("text", "");
      if (is == "refuse") throw LaunchError(text);
      if (is == "over") return outcome_from(message->value("outcome", Json::object()));
      if (!text.empty()) tell_(text);
      if (is != "start") continue;
      const Outcome outcome = one_round(*message);
      late_errors_ = outcome.late_errors;
      member_->send({{"is", "ended"}, {"outcome", to_json(outcome)}});
      if (outcome.interrupted_by != 0 && coordinator_ == nullptr) return outcome;
    }
  }
  const std::string& late_errors() const { return late_errors_; }

 private:
  // Becomes the coordinator, or finds it. The signal that came meanwhile; none: this node has met it.
  std::optional<int> meet() {
    const SignalEvents signals;
    const auto since = Clock::now();
    auto speak_at = since + job_.patience.first_word;
    for (bool may_serve = meeting_.place <= 0;;) {
      std::string unresolved;
      try {
        if (may_serve && serve()) return std::nullopt;
        may_serve = false;  // another node does
        Fd socket = connect_to(meeting_.endpoint, std::chrono::seconds(2));
        if (socket.valid()) {
          member_ = std::make_unique<Member>(Wire(std::move(socket)));
          return std::nullopt;
        }
      } catch (const UnknownName& error) {
        unresolved = error.what();
      }
      const auto now = Clock::now();
      if (!unresolved.empty() && now > since + std::min<Clock::duration>(meeting_.rules.join, kTimeToResolve))
        throw LaunchError(unresolved);
      if (now > since + meeting_.rules.join)
        throw LaunchError(
            "nobody listened at " + meeting_.endpoint.text() + ", where the nodes are to meet, for " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now - since).count()) +
            " s. Start `fsdp run` on node 0, and check the address and firewalls");
      if (now > speak_at) {
        tell_("waiting for node 0 at " + meeting_.endpoint.text() +
              (unresolved.empty() ? "" : ", a name that is not known here yet"));
        speak_at = now + job_.patience.next_word;
      }
      if (const int signal = wait(signals, -1, now + kNextTry)) return signal;
    }
  }

  // True: this process is the coordinator.
  bool serve() {
    Fd listener = listen_at(meeting_.endpoint);
    if (!listener.valid() && meeting_.place == 0)
      throw LaunchError("node 0 cannot listen at " + meeting_.endpoint.text() +
                        ", where the nodes are to meet: " + std::strerror(errno) +
                        ". --master-addr must be an address of node 0, --master-port free there");
    if (!listener.valid()) return false;
    coordinator_ = std::make_unique<Coordinator>(std::move(listener), job_.run_id, meeting_.rules);
    member_ = std::make_unique<Member>(coordinator_->take_own());
    return true;
  }

  // A signal, or a message; neither: the coordinator is gone.
  std::pair<int, std::optional<Json>> next_message() {
    const SignalEvents signals;
    for (auto speak_at = Clock::now() + job_.patience.first_word;;) {
      if (auto message = member_->take()) return {0, std::move(message)};
      if (!member_->alive()) return {0, std::nullopt};
      if (const int signal = wait(signals, member_->fd(), speak_at)) return {signal, std::nullopt};
      if (Clock::now() < speak_at) continue;
      tell_("waiting for the other nodes at " + meeting_.endpoint.text());
      speak_at = Clock::now() + job_.patience.next_word * 6;
    }
  }

  Outcome one_round(const Json& start) {
    move_to_node(job_, start.value("place", 0));
    job_.nodes = start.value("nodes", 1);
    job_.master_port = start.value("port", 0);
    job_.restart_count = start.value("restarts", 0);
    job_.run_id = start.value("run", job_.run_id);
    try {
      return run_ranks(job_, tell_, member_.get());
    } catch (const std::exception& error) {
      return not_started(error.what());
    }
  }

  // The ranks cannot be started here, so no start of the others can go well.
  Outcome not_started(const std::string& why) const {
    Outcome outcome;
    outcome.host = host_name();
    outcome.not_again = "Not started again: that has to be mended there first.";
    RankEnd end{.rank = -1, .exit_code = kNotStarted, .host = outcome.host};
    end.message = "node " + std::to_string(job_.node_rank) + " (" + outcome.host + "): " + why;
    outcome.ends.push_back(std::move(end));
    return outcome;
  }

  Outcome lost() const {
    Outcome outcome;
    outcome.host = host_name();
    RankEnd end{.rank = -1, .exit_code = kPeerLost, .host = meeting_.endpoint.host};
    end.message = "the launcher at " + meeting_.endpoint.text() +
                  ", which keeps the nodes together, was lost: it ended, or the network to it is down";
    outcome.ends.push_back(std::move(end));
    return outcome;
  }

  Job job_;
  const Meeting& meeting_;
  const Tell& tell_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Member> member_;
  std::string late_errors_;
};

}  // namespace

Outcome run_with_nodes(Job job, const Meeting& meeting, const Tell& tell) {
  NodeRun run(std::move(job), meeting, tell);
  Outcome outcome = run.run();
  outcome.late_errors = run.late_errors();
  return outcome;
}

}  // namespace fsdp::launch
