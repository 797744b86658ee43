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

// In order, up to the first operation that must
// wait or has more than its first round to publish.
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

// Does all that can be done now, without waiting. Returns true when the operation, the first pending one, is
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
  std::memset(record.activity, 0, kActivityBytes);
  gate_.activity(gate_.rank()).copy(record.activity, kActivityBytes - 1);
  record.stamp.store(op.sequence_ + 1, std::memory_order_release);
}

bool Rounds::has_issued(int rank, uint64_t sequence) const {
  return gate_.view().page(rank).records[sequence % kRecords].stamp.load(std::memory_order_acquire) >
         sequence;
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

void Rounds::throw_if_faulted(const RoundOp& op) const {
  if (gate_.faulted()) throw_fault(op);
}

}  // namespace fsdp::detail
