// Faults that a rank finds while it waits: operations that differ, ranks that gave up or meet elsewhere, and
// ranks that are late; and their words.
#include <cstring>

#include "comm/shared/rounds.h"

namespace fsdp::detail {

namespace {

std::string describe_memory(const Record& record) {
  if (record.allocation == 0) return "private memory";
  return "allocation " + std::to_string(record.allocation) + " at byte " + std::to_string(record.offset);
}

std::string name_of(const Record& record) { return std::string(record.op) + " '" + record.label + "'"; }

std::string describe_record(const Record& record) {
  return name_of(record) + " of " + std::to_string(record.elements) + " elements of " +
         to_string(static_cast<DType>(record.dtype)) + " (argument " + std::to_string(record.argument) +
         ", " + describe_memory(record) + ")";
}

bool same(const Record& a, const Record& b) {
  return a.elements == b.elements && a.argument == b.argument && a.dtype == b.dtype &&
         a.allocation == b.allocation && a.offset == b.offset && std::strcmp(a.op, b.op) == 0 &&
         std::strcmp(a.label, b.label) == 0;
}

// "in their 3rd forward", of two ranks that are in the same call.
std::string plural(std::string call) {
  const std::string its = "its ";
  const size_t at = call.find(its);
  return at == std::string::npos ? call : call.replace(at, its.size(), "their ");
}

// The difference between two ranks: the calls they are in if these are known and differ, else the operations.
std::string describe_difference(const Record& theirs, const Record& mine, int my_rank) {
  const std::string me = "rank " + std::to_string(my_rank);
  const std::string their_call = theirs.activity, my_call = mine.activity;
  if (their_call.empty() || my_call.empty())
    return "it issued " + describe_record(theirs) + " where " + me + " issued " + describe_record(mine) +
           ". Every rank must issue the same collectives in the same order";
  if (their_call != my_call)
    return "it is " + their_call + " where " + me + " is " + my_call + ". " + kSameCalls + ". (It issued " +
           name_of(theirs) + ", " + me + " " + name_of(mine) + ".)";
  const bool same_name = name_of(theirs) == name_of(mine);
  return "it issued " + (same_name ? describe_record(theirs) : name_of(theirs)) + " where " + me +
         " issued " + (same_name ? describe_record(mine) : name_of(mine)) + "; both are " + plural(my_call) +
         ". Every rank must use the same parts of the model in the same order";
}

}  // namespace

// A peer that is already further has compared itself with us, so a record that was overwritten needs no
// check. Returns false if a mismatch was found and reported.
bool Rounds::compare(const RoundOp& op) {
  const auto record_of = [&](int rank) -> const Record& {
    return gate_.view().page(rank).records[op.sequence_ % kRecords];
  };
  const Record& mine = record_of(gate_.rank());
  for (int r = 0; r < gate_.view().size(); ++r) {
    const Record& theirs = record_of(r);
    if (theirs.stamp.load(std::memory_order_acquire) != op.sequence_ + 1 || same(mine, theirs)) continue;
    // Operations of a rank that is leaving are no part of the program.
    for (const int leaver : {r, gate_.rank()})
      if (gate_.noted(leaver)) gate_.report_left(leaver);
    gate_.report(CommFault::mismatch, r, describe_difference(theirs, mine, gate_.world_rank(gate_.rank())));
    return false;
  }
  return true;
}

// Ranks with different execution orders may wait for each other without any round being complete, for example
// for a slot that the other holds. Their issued operations show it.
void Rounds::look_for_mismatch() {
  for (const RoundOpPtr& op : pending_)
    if (op->consumed_ == 0 && !compare(*op)) return;
}

// See Note [Ranks that give up].
void Rounds::look_for_given_up(Clock::time_point since, const std::function<bool(int)>& lacks) {
  for (int r = 0; r < gate_.view().size(); ++r)
    if (gate_.left_out(r) && (lacks(r) || elapsed_since(since) > kPatience)) return gate_.report_left(r);
}

// A rank in save() or load() waits there for every rank. It issues no collective before that is over, and
// this rank, which waits for one, cannot join it.
void Rounds::look_for_meeting(const std::function<bool(int)>& lacks) {
  for (int r = 0; r < gate_.view().size(); ++r)
    if (gate_.meets_without_this(r) && lacks(r))
      return gate_.report(CommFault::mismatch, r,
                          "it is " + gate_.activity(r) + " where rank " +
                              std::to_string(gate_.world_rank(gate_.rank())) + " is " +
                              gate_.activity(gate_.rank()) + ". " + kSameCalls);
}

// Finds the culprit of a timeout: a rank that said it would leave; else, in this order, a rank that has not
// done its part and is not waiting for others itself; any that is not waiting; any that is late; the one
// furthest behind.
void Rounds::report_timeout(const RoundOp& op, const std::function<bool(int)>& late) {
  for (int r = 0; r < gate_.view().size(); ++r)
    if (r != gate_.rank() && gate_.noted(r)) return gate_.report_left(r);
  std::vector<int> idle_and_late, idle, only_late;
  int behind = -1;
  const auto progress = [&](int r) { return gate_.view().page(r).rounds.load(); };
  for (int r = 0; r < gate_.view().size(); ++r) {
    if (r == gate_.rank()) continue;
    if (behind < 0 || progress(r) < progress(behind)) behind = r;
    if (late(r)) only_late.push_back(r);
    if (!gate_.waits(r)) (late(r) ? idle_and_late : idle).push_back(r);
  }
  std::vector<int> blamed{behind};
  for (const auto* group : {&only_late, &idle, &idle_and_late})
    if (!group->empty()) blamed = *group;
  std::string names;
  for (const int r : blamed) names += (names.empty() ? "" : ", ") + std::to_string(gate_.world_rank(r));
  const std::string doing = gate_.activity_text(blamed.front());
  const std::string mine = gate_.activity(gate_.rank());
  const std::string me = std::to_string(gate_.world_rank(gate_.rank()));
  const bool issued = has_issued(blamed.front(), op.sequence_);
  gate_.report(CommFault::timeout, blamed.front(),
               "it " + (doing.empty() ? "" : doing + ", and ") +
                   (issued ? "has not finished its part of this " : "has not come to this ") + op.info.op +
                   " within " + std::to_string(elapsed_since(op.issued_at_).count()) +
                   " ms (ranks not there: " + names + ")" +
                   (mine.empty() ? "" : "; rank " + me + " is " + mine) +
                   ". It may be stopped, stuck, much slower than the others, or in another call");
}

void Rounds::throw_fault(const RoundOp& op) const {
  const Fault fault = gate_.fault();
  throw CommError({.fault = static_cast<CommFault>(fault.kind - 1),
                   .rank = gate_.rank(),
                   .culprit = fault.culprit,
                   .op = op.info.op,
                   .label = op.info.label,
                   .sequence = op.sequence_,
                   .elapsed = elapsed_since(op.issued_at_),
                   .reason = gate_.fault_reason()});
}

}  // namespace fsdp::detail
