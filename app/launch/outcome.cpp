#include "app/launch/outcome.h"

#include <algorithm>
#include <csignal>
#include <map>

#include "app/launch/rank_log.h"
#include "app/launch/signals.h"

namespace fsdp::launch {

namespace {

constexpr int kSignalBase = 128;

std::string indented(const RankEnd& end) {
  const std::string margin = "  [rank " + std::to_string(end.rank) + "] ";
  std::string text;
  for (size_t begin = 0; begin < end.message.size();) {
    const size_t line_end = std::min(end.message.find('\n', begin), end.message.size());
    text += margin + printable_line(end.message.substr(begin, line_end - begin)) + "\n";
    begin = line_end + 1;
  }
  if (!end.message.empty()) return text;
  for (const std::string& line : end.last_lines) text += margin + line + "\n";
  return text;
}

// The other ranks that failed: those that ended alike, with the same words, share a line.
std::string cascade(const Outcome& outcome, const RankEnd& cause) {
  std::vector<std::string> order;
  std::string lost;
  std::map<std::string, std::vector<int>> alike;
  for (const RankEnd& end : outcome.ends) {
    if (!end.failed() || &end == &cause) continue;
    if (end.rank < 0) {
      lost += "then " + end.message + "\n";
      continue;
    }
    std::string words = describe(end);
    if (!end.message.empty() && end.message == cause.message)
      words += " and the same message";
    else if (!end.message.empty() && end.kind != EndKind::killed)
      words += ": " + printable_line(end.message.substr(0, end.message.find('\n')));
    if (alike[words].empty()) order.push_back(words);
    alike[words].push_back(end.rank);
  }
  std::string text;
  for (const std::string& words : order) {
    const bool many = alike[words].size() > 1 && words.starts_with("was ");
    text += "then " + name_ranks(alike[words]) + " " + (many ? "were " + words.substr(4) : words) + "\n";
  }
  return text + lost;
}

}  // namespace

const RankEnd* Outcome::cause() const {
  // A rank that saved and left is no failure where another rank could not.
  const auto is_nearer = [](const RankEnd& one, const RankEnd& other) {
    const bool saved = one.exit_code == kRequeue, other_saved = other.exit_code == kRequeue;
    return saved != other_saved ? other_saved : one.kind < other.kind;
  };
  const RankEnd* nearest = nullptr;
  for (const RankEnd& end : ends)
    if (end.failed() && (nearest == nullptr || is_nearer(end, *nearest))) nearest = &end;
  if (nearest == nullptr || nearest->kind != EndKind::peer) return nearest;
  for (const RankEnd& end : ends)
    if (end.failed() && end.rank == nearest->culprit && end.kind == EndKind::peer) return &end;
  return nearest;
}

int64_t Outcome::step() const {
  int64_t highest = -1;
  for (const RankEnd& end : ends) highest = std::max(highest, end.step);
  return highest;
}

bool Outcome::asks_for_requeue() const {
  const RankEnd* found = cause();
  return found != nullptr && found->exit_code == kRequeue;
}

int Outcome::exit_code() const {
  const RankEnd* found = cause();
  if (abandoned) return kSignalBase + interrupted_by;
  if (found == nullptr || (asks_for_requeue() && interrupted_by == SIGINT)) return 0;
  return interrupted_by != 0 && found->kind >= EndKind::peer ? kSignalBase + interrupted_by
                                                             : found->exit_code;
}

std::string describe(const RankEnd& end) {
  switch (end.kind) {
    case EndKind::stopped:
      return "was stopped (SIGSTOP or a debugger) and could not go on; it was killed";
    case EndKind::killed:
      return "was killed by the launcher";
    case EndKind::asked:
      return "was ended by the launcher's SIGTERM";
    default:
      if (end.exit_code == kRequeue) return "left, to be started again (exit code 75)";
      return end.signal != 0 ? describe_signal(end.signal)
                             : "ended with exit code " + std::to_string(end.exit_code);
  }
}

std::string headline(const Outcome& outcome) {
  const RankEnd* cause = outcome.cause();
  if (cause == nullptr) return "no rank failed";
  if (cause->rank < 0) return cause->message;
  return "rank " + std::to_string(cause->rank) + " of " + std::to_string(outcome.world_size) + " on " +
         (cause->host.empty() ? outcome.host : cause->host) + " " + describe(*cause) +
         (cause->kind == EndKind::peer && cause->culprit >= 0
              ? ", because of rank " + std::to_string(cause->culprit)
              : "");
}

std::string in_short(const Outcome& outcome) {
  const std::string message = outcome.cause()->rank < 0 ? "" : outcome.cause()->message;
  return headline(outcome) + (message.empty() ? "" : ": " + message.substr(0, message.find('\n')));
}

std::string report(const Outcome& outcome) {
  const RankEnd* cause = outcome.cause();
  if (cause == nullptr || outcome.asks_for_requeue()) return "";
  std::string text;
  if (outcome.interrupted_by != 0 && cause->kind >= EndKind::peer) {
    text = "stopped by " + signal_name(outcome.interrupted_by) + " to the launcher" +
           (outcome.abandoned ? ", sent twice: the ranks were killed\n" : "\n");
    if (cause->kind >= EndKind::asked) return text;
  }
  text += headline(outcome) + "\n" + (cause->rank < 0 ? "" : indented(*cause));
  if (!cause->log.empty()) text += "  All of its output: " + cause->log + "\n";
  if (!outcome.not_again.empty()) text += "  " + outcome.not_again + "\n";
  return text + cascade(outcome, *cause) + outcome.late_errors;
}

std::string name_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last < i + 2) last = i;
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace fsdp::launch
