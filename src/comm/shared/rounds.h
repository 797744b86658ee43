// Rounds: the order of work in a group. Operations are rounds of "publish, wait for all, consume".
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/backend.h"
#include "comm/shared/extents.h"
#include "comm/shared/gate.h"
#include "comm/shared/messages.h"

namespace fsdp::detail {

class Rounds;

// One collective. Round r may need a staging bank: publish() writes this rank's bank, consume() reads all
// banks.
class RoundOp {
 public:
  virtual ~RoundOp() = default;

  virtual int rounds() const { return 1; }
  virtual bool staged() const { return false; }
  // True if round r + 1 may be published before round r is consumed.
  virtual bool pipelined() const { return true; }
  // True if the first round may write to its target: see Note [Shared slots].
  virtual bool may_publish() const { return true; }
  virtual void publish(int /*round*/, char* /*bank*/) {}
  virtual void consume(int /*round*/, int /*bank_index*/) {}

  // Peers must agree on these. Shared memory: the allocation's number (from 1) and offset; private: 0.
  uint64_t elements = 0;
  int32_t argument = 0;
  DType dtype = DType::u8;
  uint32_t allocation = 0;
  uint64_t offset = 0;
  OpInfo info;

  // Memory that the operation works on, kept until it is complete or its group has failed, even if its owner
  // drops it.
  std::vector<at::Tensor> tensors;

  bool complete() const { return consumed_ == rounds(); }

 private:
  friend class Rounds;
  uint64_t sequence_ = 0;
  uint64_t first_round_ = 0;
  uint64_t first_staged_ = 0;
  int published_ = 0;  // rounds
  int consumed_ = 0;
  Clock::time_point issued_at_ = Clock::now();
};
using RoundOpPtr = std::shared_ptr<RoundOp>;

// Note [Rounds]
// Every rank numbers rounds alike. A rank arrives at a round when its data is ready. When all have arrived,
// each takes its part and counts itself done. A bank is written again only when all are done with the round
// that used it. There is no helper thread: rounds are published when the operation is issued if possible,
// otherwise while the rank waits for anything in this group. Operations complete in the order issued. A rank
// gets at most kMaxPending operations ahead, so the ring of cells never wraps onto a round that another rank
// still reads. A fault ends all of it: pending operations are dropped, and every later call throws.
//
// Note [Ranks that give up]
// A rank whose backward threw skips the operations that were still to come, and may go on using the group. If
// all ranks threw alike, they skipped the same operations and are in step. So ranks count how often they gave
// up. A rank that waits for one with a higher count is still inside an operation that the other gave up.
// Ranks that are about to throw alike issue the same operations before, so an operation that the other has
// not issued will never come: this is reported at once. An operation that it has issued, or memory that it
// holds, may be completed when it next uses the group: it gets kPatience for that.
class Rounds {
 public:
  Rounds(Gate& gate, Messages& messages);

  // Numbers `op`, describes it to the others and publishes its first round if nothing stands in the way.
  void issue(const RoundOpPtr& op, Clock::time_point deadline);
  // Completes everything up to `op`. Throws CommError.
  void complete(const RoundOpPtr& op, Clock::time_point deadline);

  // Waits for a condition that other ranks' completions make true.
  void wait_completions(const RoundOp& op, Clock::time_point deadline, const std::function<bool()>& ready);
  void wait_message(const Message& message, const OpInfo& info, Clock::time_point started,
                    Clock::time_point deadline);

  // Does all that can be done now, without waiting.
  void move_on();
  // `look` is called now and then while this rank waits; it may report a fault.
  void on_look(std::function<void()> look) { look_elsewhere_ = std::move(look); }

  void throw_if_faulted(const RoundOp& op) const;
  bool idle() const { return pending_.empty(); }

 private:
  // `lacks(r)`: rank r has not begun the operation this one waits in.
  template <class Ready, class Needs, class Lacks>
  void wait(const RoundOp& op, uint32_t interests, Clock::time_point deadline, Ready ready, Needs needs,
            Lacks lacks) {
    const auto pump_and_check = [&] {
      if (messages_.pending()) messages_.pump();
      return ready();
    };
    const uint32_t all = interests | (messages_.pending() ? kMessages : 0u);
    const auto look = [&, since = Clock::now()] {
      look_for_given_up(since, lacks);
      look_for_mismatch();
      look_for_meeting(lacks);
      if (look_elsewhere_) look_elsewhere_();
    };
    settle(gate_.wait(all, deadline, pump_and_check, needs, look), op, needs);
  }

  // Waits for a condition that is no operation. Operations progress meanwhile: the rank that makes it true
  // may wait for one of them.
  void wait_beside(const RoundOp& op, uint32_t interests, Clock::time_point deadline,
                   const std::function<bool()>& ready, const std::function<bool(int)>& needs);
  void settle(Gate::Outcome outcome, const RoundOp& op, const std::function<bool(int)>& late);
  void complete_front(Clock::time_point deadline);
  bool advance(RoundOp& op);
  bool may_advance_front() { return !pending_.empty() && !gate_.aborted(); }
  void describe(const RoundOp& op);
  bool compare(const RoundOp& op);
  void look_for_mismatch();
  void look_for_given_up(Clock::time_point since, const std::function<bool(int)>& lacks);
  void look_for_meeting(const std::function<bool(int)>& lacks);
  bool has_issued(int rank, uint64_t sequence) const;
  bool try_publish(RoundOp& op);
  void publish_ready();
  bool bank_free(const RoundOp& op, int round) const;
  int bank_index(const RoundOp& op, int round) const;
  void arrive(uint64_t round);
  void finish(uint64_t round);
  Completion arrivals(uint64_t round) const;
  bool owes(int rank) const;
  void report_timeout(const RoundOp& op, const std::function<bool(int)>& late);
  [[noreturn]] void throw_fault(const RoundOp& op) const;

  static constexpr Milliseconds kPatience{2000};

  Gate& gate_;
  Messages& messages_;
  std::function<void()> look_elsewhere_;
  std::deque<RoundOpPtr> pending_;
  uint64_t next_sequence_ = 0;
  uint64_t next_round_ = 0;
  uint64_t next_staged_ = 0;
  uint64_t bank_round_[kBanks];  // the round that used the bank last
};

}  // namespace fsdp::detail
