#include "app/launch/nodes/assembly.h"

#include <algorithm>
#include <utility>

#include "app/launch/signals.h"

namespace fsdp::launch {

namespace {

constexpr int kRendezvous = 4;
constexpr int kPeerLost = 5;

using Kind = Order::Kind;

std::string count(int number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

}  // namespace

Assembly::Orders Assembly::to_all(Order order) const {
  Orders orders;
  for (const auto& [number, node] : nodes_) {
    order.node = number;
    orders.push_back(order);
  }
  return orders;
}

int Assembly::largest_round() const {
  const int there = std::min(static_cast<int>(nodes_.size()), rules_.most);
  for (int nodes = there; nodes >= rules_.least; --nodes)
    if (!rules_.usable || rules_.usable(nodes * nodes_.begin()->second.info.ranks)) return nodes;
  return 0;
}

std::string Assembly::why_refused(const NodeInfo& info) const {
  const std::string place = "node " + std::to_string(info.place);
  if (info.place >= rules_.most)
    return "--node-rank " + std::to_string(info.place) + ": the run has " + count(rules_.most, "node");
  for (const auto& [number, node] : nodes_) {
    if (node.info.ranks != info.ranks)
      return "--nproc-per-node: found " + std::to_string(info.ranks) + " on " + info.host + " and " +
             std::to_string(node.info.ranks) + " on " + node.info.host + "; expected the same on all nodes";
    if (info.place >= 0 && node.info.place == info.place)
      return "--node-rank " + std::to_string(info.place) + ": " + node.info.host +
             " is this node already. Each node has a number of its own";
  }
  return "";
}

Assembly::Orders Assembly::joined(int node, const NodeInfo& info, Now now) {
  if (phase_ == Phase::over) return {{.node = node, .kind = Kind::over}};
  if (std::string text = why_refused(info); !text.empty())
    return {{.node = node, .kind = Kind::refuse, .text = std::move(text)}};
  nodes_[node] = {.info = info};
  if (phase_ == Phase::gathering) {
    changed_at_ = now;
    return try_start(now);
  }
  if (phase_ == Phase::running && largest_round() > round_nodes_) {
    growing_ = true;
    came_ = info.host;
    return end_round(Kind::leave, came_ + " has come");
  }
  return {{.node = node, .kind = Kind::wait, .text = "the run has enough nodes without this one"}};
}

Assembly::Orders Assembly::try_start(Now now) {
  const int nodes = nodes_.empty() ? 0 : largest_round();
  if (nodes == 0) return {};
  const auto call = rounds_ == 0 ? rules_.first_call : rules_.next_call;
  const bool all_there = nodes == rules_.most;
  return all_there || now >= changed_at_ + call ? start(nodes) : Orders{};
}

Assembly::Orders Assembly::start(int nodes) {
  phase_ = Phase::running;
  round_nodes_ = nodes;
  ++rounds_;
  growing_ = told_of_failure_ = has_to_end_ = false;
  first_failed_ = -1;
  interrupted_by_ = 0;
  outcome_ = {};
  outcome_.world_size = nodes * nodes_.begin()->second.info.ranks;
  const bool placed = !is_elastic() && std::all_of(nodes_.begin(), nodes_.end(), [](const auto& one) {
    return one.second.info.place >= 0;
  });
  Orders orders;
  int next = 0;
  for (auto& [number, node] : nodes_) {
    node.in_round = node.running = next < nodes;
    node.place = placed ? node.info.place : next;
    ++next;
    if (node.in_round)
      orders.push_back({number, Kind::start, node.place, nodes, rounds_ - 1, why_});
    else
      orders.push_back(
          {.node = number, .text = "the program does not run on more than " + count(nodes, "node")});
  }
  why_.clear();
  return orders;
}

// Tells the nodes of the round, but not those whose ranks have ended.
Assembly::Orders Assembly::end_round(Kind kind, const std::string& text) {
  Orders orders;
  const bool told = phase_ == Phase::ending && (kind == Kind::leave || told_of_failure_);
  if (!told)
    for (const auto& [number, node] : nodes_)
      if (node.running) orders.push_back({.node = number, .kind = kind, .text = text});
  phase_ = Phase::ending;
  told_of_failure_ = told_of_failure_ || kind == Kind::fail;
  return orders;
}

Assembly::Orders Assembly::failing(int node) {
  const auto at = nodes_.find(node);
  if (at == nodes_.end() || !at->second.running) return {};
  if (first_failed_ < 0) first_failed_ = node;
  Orders orders = end_round(Kind::fail, "a rank failed on " + at->second.info.host);
  std::erase_if(orders, [&](const Order& order) { return order.node == node; });
  return orders;
}

Assembly::Orders Assembly::lost(int node, Now now) {
  const auto at = nodes_.find(node);
  if (at == nodes_.end()) return {};
  const Node gone = at->second;
  nodes_.erase(at);
  if (phase_ == Phase::gathering) changed_at_ = now;
  if (!gone.running) return {};
  RankEnd end{.rank = -1, .exit_code = kPeerLost, .host = gone.info.host};
  end.message = "node " + std::to_string(gone.place) + " (" + gone.info.host +
                ") was lost: its `fsdp run` ended, or the network to it is down";
  outcome_.ends.push_back(std::move(end));
  Orders orders = end_round(Kind::fail, gone.info.host + " was lost");
  const Orders more = node_ended(now);
  orders.insert(orders.end(), more.begin(), more.end());
  return orders;
}

Assembly::Orders Assembly::ended(int node, const Outcome& outcome, Now now) {
  const auto at = nodes_.find(node);
  if (at == nodes_.end() || !at->second.running) return {};
  at->second.running = false;
  std::vector<RankEnd> ends = outcome.ends;
  for (RankEnd& end : ends)
    if (end.host.empty()) end.host = at->second.info.host;
  outcome_.ends.insert(node == first_failed_ ? outcome_.ends.begin() : outcome_.ends.end(), ends.begin(),
                       ends.end());
  if (!outcome.not_again.empty()) outcome_.not_again = outcome.not_again;
  Orders orders;
  if (outcome.interrupted_by != 0) {
    interrupted_by_ = outcome.interrupted_by;
    outcome_.abandoned = outcome_.abandoned || outcome.abandoned;
    has_to_end_ = has_to_end_ || !is_elastic() || node == 0;
    // Ranks that were killed can meet nobody any more.
    orders = end_round(outcome.abandoned ? Kind::fail : Kind::leave,
                       signal_name(interrupted_by_) + " came to " + at->second.info.host);
    if (node != 0) nodes_.erase(at);  // its launcher ends too
  } else if (outcome.exit_code() != 0 && phase_ == Phase::running) {
    orders = outcome.asks_for_requeue() ? end_round(Kind::leave, "the ranks of another node saved and left")
                                        : end_round(Kind::fail, "a rank failed");
  }
  const Orders more = node_ended(now);
  orders.insert(orders.end(), more.begin(), more.end());
  return orders;
}

Assembly::Orders Assembly::node_ended(Now now) {
  const bool running =
      std::any_of(nodes_.begin(), nodes_.end(), [](const auto& one) { return one.second.running; });
  return running ? Orders{} : settle(now);
}

// All ranks of the round have ended.
Assembly::Orders Assembly::settle(Now now) {
  const RankEnd* cause = outcome_.cause();
  const bool asked_again =
      cause != nullptr && (cause->exit_code == kRequeue || cause->kind == EndKind::asked);
  if (cause == nullptr) return finish();
  if (growing_ && asked_again && !has_to_end_)
    return gather(now, came_ + " has come; starting all ranks again, on more nodes");
  if (interrupted_by_ != 0) {
    const int signal = std::exchange(interrupted_by_, 0);
    if (!has_to_end_ && asked_again)
      return gather(now, "a node left; starting all ranks again, on fewer nodes");
    if (has_to_end_) {
      outcome_.interrupted_by = signal;
      return finish();
    }
    outcome_.abandoned = false;  // the others go on without that node, if the restarts are not used up
  }
  if (outcome_.asks_for_requeue() || restarts_ >= rules_.max_restarts || !outcome_.not_again.empty())
    return finish();
  if (cause->exit_code == rules_.final_code) {
    outcome_.not_again = kUsedWrongly;
    return finish();
  }
  if (loop_.add(outcome_.step())) {
    outcome_.not_again = "Not started again: three starts in a row failed in step " +
                         std::to_string(outcome_.step()) + ", and the next would, too.";
    return finish();
  }
  ++restarts_;
  return gather(now, in_short(outcome_) + "; starting all ranks again (restart " + std::to_string(restarts_) +
                         " of " + std::to_string(rules_.max_restarts) + ")");
}

Assembly::Orders Assembly::gather(Now now, const std::string& why) {
  phase_ = Phase::gathering;
  changed_at_ = now;
  why_ = why;
  if (Orders orders = try_start(now); !orders.empty()) return orders;
  const int missing = rules_.least - static_cast<int>(nodes_.size());
  const std::string wait =
      missing > 0
          ? ". Waiting up to " +
                std::to_string(std::chrono::duration_cast<std::chrono::seconds>(rules_.join).count()) +
                " s for " + count(missing, "node") + ": start `fsdp run` there again"
          : "";
  return to_all({.text = std::exchange(why_, {}) + wait});
}

Assembly::Orders Assembly::finish() {
  phase_ = Phase::over;
  return to_all({.kind = Kind::over});
}

Assembly::Orders Assembly::tick(Now now) {
  if (phase_ != Phase::gathering) return {};
  if (Orders orders = try_start(now); !orders.empty()) return orders;
  if (now < changed_at_ + rules_.join) return {};
  std::string hosts;
  for (const auto& [number, node] : nodes_) hosts += (hosts.empty() ? "" : ", ") + node.info.host;
  RankEnd end{.rank = -1, .exit_code = kRendezvous};
  end.message = "of " + count(rules_.least, "node") + ", " + std::to_string(nodes_.size()) + " came within " +
                std::to_string(std::chrono::duration_cast<std::chrono::seconds>(rules_.join).count()) +
                " s: " + hosts +
                ". Start `fsdp run` on the others too; --rdzv-conf join_timeout=SECONDS waits longer";
  outcome_.ends.push_back(std::move(end));
  return finish();
}

std::optional<Assembly::Now> Assembly::next_tick() const {
  if (phase_ != Phase::gathering) return std::nullopt;
  const Now join = changed_at_ + rules_.join;
  if (nodes_.empty() || largest_round() == 0) return join;
  return std::min(join, changed_at_ + (rounds_ == 0 ? rules_.first_call : rules_.next_call));
}

}  // namespace fsdp::launch
