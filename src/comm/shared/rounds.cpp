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

std::string describe_memory(const Record& record) {
  if (record.allocation == 0) return "private memory";
  return "allocation " + std::to_string(record.allocation) + " at byte " + std::to_string(record.offset);
}

std::string describe_record(const Record& record) {
  return std::string(record.op) + " '" + record.label + "' of " + std::to_string(record.elements) +
         " elements of " + to_string(static_cast<DType>(record.dtype)) + " (argument " +
         std::to_string(record.argument) + ", " + describe_memory(record) + ")";
}

bool same(const Record& a, const Record& b) {
  return a.elements == b.elements && a.argument == b.argument && a.dtype == b.dtype &&
         a.allocation == b.allocation && a.offset == b.offset && std::strcmp(a.op, b.op) == 0 &&
         std::strcmp(a.label, b.label) == 0;
}

}  // namespace

Rounds::Rounds(Gate& gate, Messages& messages, std::vector<int> world_ranks)
    : gate_(gate), messages_(messages), world_ranks_(std::move(world_ranks)) {
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
  while (!op->complete()) {
    if (pending_.empty() || gate_.aborted()) throw_fault(*op);  // dropped by an earlier fault
    complete_front(deadline);
  }
}

void Rounds::complete_front(Clock::time_point deadline) {
  const RoundOpPtr op = pending_.front();
  try {
    while (!advance(*op)) {
      const int published = op->published_;
      const int consumed = op->consumed_;
      const bool arrives = published > consumed;
      const uint64_t round = op->first_round_ + static_cast<uint64_t>(consumed);
      wait(
          *op, arrives ? kArrivals : kCompletions, deadline,
          [&] { return advance(*op) || op->published_ != published || op->consumed_ != consumed; },
          [&](int rank) { return arrives ? gate_.view().page(rank).rounds.load() <= round : owes(rank); },
          [&](int rank) { return !has_issued(rank, op->sequence_); });
    }
  } catch (...) {
    pending_.clear();
    throw;
  }
}

// Does what can be done now, without waiting; true when the operation, the first of the pending ones, is
// complete.
bool Rounds::advance(RoundOp& op) {
  while (!op.complete()) {
    if (op.published_ == op.consumed_ && !try_publish(op)) return false;
    if (op.pipelined() && op.published_ == op.consumed_ + 1 && op.published_ < op.rounds()) try_publish(op);
    const uint64_t round = op.first_round_ + static_cast<uint64_t>(op.consumed_);
    if (!arrivals(round).reached()) return false;
    if (op.consumed_ == 0 && !compare(op)) throw_fault(op);
    op.consume(op.consumed_, bank_index(op, op.consumed_));
    finish(round);
    ++op.consumed_;
  }
  op.tensors.clear();
  if (!pending_.empty() && pending_.front().get() == &op) {
    pending_.pop_front();
    publish_ready();
  }
  return true;
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
  record.allocation = op.allocation;
  record.offset = op.offset;
  std::strncpy(record.op, op.info.op, sizeof(record.op) - 1);
  std::memset(record.label, 0, kLabelBytes);
  op.info.label.copy(record.label, kLabelBytes - 1);
  record.stamp.store(op.sequence_ + 1, std::memory_order_release);
}

// A peer that is already further on has compared itself with us, so a record that was overwritten needs no
// look. False: a mismatch was found and reported.
bool Rounds::compare(const RoundOp& op) {
  const auto record_of = [&](int rank) -> const Record& {
    return gate_.view().page(rank).records[op.sequence_ % kRecords];
  };
  const Record& mine = record_of(gate_.rank());
  for (int r = 0; r < gate_.view().size(); ++r) {
    const Record& theirs = record_of(r);
    if (theirs.stamp.load(std::memory_order_acquire) != op.sequence_ + 1 || same(mine, theirs)) continue;
    // What a rank does on its way out is no part of the program.
    for (const int leaver : {r, gate_.rank()})
      if (gate_.noted(leaver)) gate_.report_left(leaver);
    gate_.report(CommFault::mismatch, r,
                 "it issued " + describe_record(theirs) + " where rank " +
                     std::to_string(world_ranks_[static_cast<size_t>(gate_.rank())]) + " issued " +
                     describe_record(mine) +
                     ". Every rank must issue the same collectives in the same order");
    return false;
  }
  return true;
}

// Ranks that went different ways may wait for each other without any round being complete: one for a slot
// that the other holds. What they have issued tells.
void Rounds::look_for_mismatch() {
  for (const RoundOpPtr& op : pending_)
    if (op->consumed_ == 0 && !compare(*op)) return;
}

bool Rounds::has_issued(int rank, uint64_t sequence) const {
  return gate_.view().page(rank).records[sequence % kRecords].stamp.load(std::memory_order_acquire) >
         sequence;
}

// See Note [Ranks that give up].
void Rounds::look_for_given_up(Clock::time_point since, const std::function<bool(int)>& lacks) {
  for (int r = 0; r < gate_.view().size(); ++r)
    if (gate_.left_out(r) && (lacks(r) || elapsed_since(since) > kPatience)) return gate_.report_left(r);
}

void Rounds::wait_message(const Message& message, const OpInfo& info, Clock::time_point started,
                          Clock::time_point deadline) {
  RoundOp op;
  op.info = info;
  op.sequence_ = message.number;
  op.issued_at_ = started;
  wait_beside(
      op, kMessages, deadline, [&] { return message.complete; }, [&](int r) { return r == message.peer; });
}

void Rounds::wait_completions(const RoundOp& op, Clock::time_point deadline,
                              const std::function<bool()>& ready) {
  wait_beside(op, kCompletions, deadline, ready, [this](int r) { return owes(r); });
}

void Rounds::wait_beside(const RoundOp& op, uint32_t interests, Clock::time_point deadline,
                         const std::function<bool()>& ready, const std::function<bool(int)>& needs) {
  const auto move_on = [&] {
    while (!ready() && may_advance_front() && advance(*RoundOpPtr(pending_.front()))) {
    }
    return ready();
  };
  if (ready()) return;
  try {
    wait(op, pending_.empty() ? interests : kEverything, deadline, move_on, needs, [](int) { return false; });
  } catch (...) {
    pending_.clear();
    throw;
  }
}

void Rounds::move_on() {
  if (messages_.pending()) messages_.pump();
  while (may_advance_front() && advance(*RoundOpPtr(pending_.front()))) {
  }
}

void Rounds::settle(Gate::Outcome outcome, const RoundOp& op, const std::function<bool(int)>& late) {
  if (outcome == Gate::Outcome::ready) return;
  if (outcome == Gate::Outcome::timeout) report_timeout(op, late);
  throw_fault(op);
}

// Who is to blame? A rank that said it would leave; then best a rank that has not done its part and is not
// waiting for somebody itself; then any that is not waiting; then any that is late; at last the one furthest
// behind.
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
  for (const int r : blamed)
    names += (names.empty() ? "" : ", ") + std::to_string(world_ranks_[static_cast<size_t>(r)]);
  gate_.report(CommFault::timeout, blamed.front(),
               "it did not do its part within " + std::to_string(elapsed_since(op.issued_at_).count()) +
                   " ms (ranks not there: " + names +
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
