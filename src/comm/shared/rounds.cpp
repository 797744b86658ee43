#include "comm/shared/rounds.h"

#include <cstring>
#include <limits>

#include "base/assert.h"

namespace fsdp::detail {

namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

uint32_t count_after(uint64_t round, int size) {
  return static_cast<uint32_t>((round / kCells + 1) * static_cast<uint64_t>(size));
}

std::string describe_record(const Record& record) {
  return std::string(record.op) + " '" + record.label + "' of " + std::to_string(record.elements) +
         " elements of " + to_string(static_cast<DType>(record.dtype)) + " (argument " +
         std::to_string(record.argument) + ")";
}

bool same(const Record& a, const Record& b) {
  return a.elements == b.elements && a.argument == b.argument && a.dtype == b.dtype &&
         std::strcmp(a.op, b.op) == 0 && std::strcmp(a.label, b.label) == 0;
}

}  // namespace

Rounds::Rounds(Gate& gate, Messages& messages) : gate_(gate), messages_(messages) {
  for (auto& round : bank_round_) round = kNever;
}

void Rounds::issue(const RoundOpPtr& op, Clock::time_point deadline) {
  op->issued_at_ = Clock::now();
  op->sequence_ = next_sequence_;
  throw_if_faulted(*op);
  while (pending_.size() >= kMaxPending) complete_front(deadline);
  op->first_round_ = next_round_;
  op->first_staged_ = next_staged_;
  ++next_sequence_;
  next_round_ += static_cast<uint64_t>(op->rounds());
  if (op->staged()) next_staged_ += static_cast<uint64_t>(op->rounds());
  describe(*op);
  pending_.push_back(op);
  publish_ready();
}

// In order, and no further than the first operation that must wait or has more than its first round to
// publish.
void Rounds::publish_ready() {
  for (const RoundOpPtr& op : pending_) {
    if (op->published_ == 0 && !try_publish(*op)) return;
    if (op->published_ < op->rounds()) return;
  }
}

void Rounds::complete(const RoundOpPtr& op, Clock::time_point deadline) {
  while (!op->complete_) {
    if (gate_.aborted()) throw_fault(*op);
    FSDP_ASSERT(!pending_.empty());
    complete_front(deadline);
  }
}

void Rounds::drain(Clock::time_point deadline) {
  while (!pending_.empty()) complete_front(deadline);
}

void Rounds::complete_front(Clock::time_point deadline) {
  const RoundOpPtr op = pending_.front();
  for (int r = 0; r < op->rounds(); ++r) {
    while (op->published_ <= r) publish(*op, deadline);
    if (op->pipelined() && r + 1 < op->rounds() && op->published_ == r + 1) try_publish(*op);
    const uint64_t round = op->first_round_ + static_cast<uint64_t>(r);
    const Completion all = arrivals(round);
    wait(
        *op, kArrivals, deadline, [&] { return all.reached(); },
        [&](int rank) { return gate_.view().page(rank).rounds.load() <= round; });
    if (r == 0) compare(*op);
    op->consume(r, bank_index(*op, r));
    finish(round);
  }
  op->complete_ = true;
  pending_.pop_front();
  publish_ready();
}

bool Rounds::try_publish(RoundOp& op) {
  const int round = op.published_;
  if (round == 0 && !op.may_publish()) return false;
  if (!bank_free(op, round)) return false;
  const int bank = bank_index(op, round);
  op.publish(round, gate_.view().bank(gate_.rank(), bank));
  const uint64_t number = op.first_round_ + static_cast<uint64_t>(round);
  if (op.staged()) bank_round_[bank] = number;
  ++op.published_;
  arrive(number);
  return true;
}

void Rounds::publish(RoundOp& op, Clock::time_point deadline) {
  bool published = false;
  wait_completions(op, deadline, [&] { return published = published || try_publish(op); });
}

int Rounds::bank_index(const RoundOp& op, int round) const {
  return static_cast<int>((op.first_staged_ + static_cast<uint64_t>(round)) % kBanks);
}

bool Rounds::bank_free(const RoundOp& op, int round) const {
  if (!op.staged()) return true;
  const uint64_t user = bank_round_[bank_index(op, round)];
  if (user == kNever) return true;
  return Completion{&gate_.view().cell(user).done, count_after(user, gate_.view().size())}.reached();
}

void Rounds::arrive(uint64_t round) {
  gate_.view().page(gate_.rank()).rounds.store(round + 1);
  const uint32_t count = gate_.view().cell(round).arrived.fetch_add(1) + 1;
  if (count == count_after(round, gate_.view().size())) gate_.ring(kArrivals);
}

void Rounds::finish(uint64_t round) {
  const uint32_t count = gate_.view().cell(round).done.fetch_add(1) + 1;
  if (count == count_after(round, gate_.view().size())) gate_.ring(kCompletions);
}

Completion Rounds::arrivals(uint64_t round) const {
  return {&gate_.view().cell(round).arrived, count_after(round, gate_.view().size())};
}

bool Rounds::owes(int rank) const {
  return gate_.view().page(rank).state.load() == static_cast<uint32_t>(RankState::left_owing);
}

void Rounds::describe(const RoundOp& op) {
  Record& record = gate_.view().page(gate_.rank()).records[op.sequence_ % kRecords];
  record.stamp.store(0, std::memory_order_relaxed);
  record.elements = op.elements;
  record.argument = op.argument;
  record.dtype = static_cast<uint8_t>(op.dtype);
  std::strncpy(record.op, op.info.op, sizeof(record.op) - 1);
  std::memset(record.label, 0, kLabelBytes);
  op.info.label.copy(record.label, kLabelBytes - 1);
  record.stamp.store(op.sequence_ + 1, std::memory_order_release);
}

// A peer that is already further on has compared itself with us, so a record that was overwritten needs no
// look.
void Rounds::compare(const RoundOp& op) {
  const auto record_of = [&](int rank) -> const Record& {
    return gate_.view().page(rank).records[op.sequence_ % kRecords];
  };
  const Record& mine = record_of(gate_.rank());
  for (int r = 0; r < gate_.view().size(); ++r) {
    const Record& theirs = record_of(r);
    if (theirs.stamp.load(std::memory_order_acquire) != op.sequence_ + 1 || same(mine, theirs)) continue;
    gate_.report(CommFault::mismatch, r,
                 "it issued " + describe_record(theirs) + " where this rank issued " + describe_record(mine) +
                     ". Every rank must issue the same collectives in the same order");
    throw_fault(op);
  }
}

void Rounds::wait_message(const Message& message, const OpInfo& info, Clock::time_point started,
                          Clock::time_point deadline) {
  RoundOp op;
  op.info = info;
  op.sequence_ = message.number;
  op.issued_at_ = started;
  if (!message.complete)
    wait(
        op, kMessages, deadline, [&] { return message.complete; }, [&](int r) { return r == message.peer; });
}

void Rounds::settle(Gate::Outcome outcome, const RoundOp& op, const std::function<bool(int)>& late) {
  if (outcome == Gate::Outcome::ready) return;
  if (outcome == Gate::Outcome::timeout) report_timeout(op, late);
  throw_fault(op);
}

// Who is to blame? Best a rank that has not done its part and is not waiting for somebody itself; then any
// that is not waiting; then any that is late; at last the one furthest behind.
void Rounds::report_timeout(const RoundOp& op, const std::function<bool(int)>& late) {
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
  for (const int r : blamed) names += (names.empty() ? "" : ", ") + std::to_string(r);
  gate_.report(CommFault::timeout, blamed.front(),
               "it did not do its part within " + std::to_string(elapsed_since(op.issued_at_).count()) +
                   " ms (group ranks not there: " + names +
                   "). It may be stopped, stuck or much slower than the others");
}

void Rounds::throw_if_faulted(const RoundOp& op) const {
  if (gate_.faulted()) throw_fault(op);
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
