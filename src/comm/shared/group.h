// SharedGroup: one rank's place in a group on shared memory. Issues operations and messages as Work, and
// reports faults with ranks as users know them.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/await.h"
#include "comm/shared/rounds.h"

namespace fsdp::detail {

// The context of a call that is no operation itself, for errors. It begins now.
RoundOp context_of(OpInfo info);

class SharedGroup : private ActivityBoard {
 public:
  SharedGroup(const GroupInfo& info, ControlView view, std::unique_ptr<Liveness> liveness);
  ~SharedGroup() override;

  const GroupInfo& info() const { return info_; }
  const ControlView& view() const { return gate_.view(); }
  Gate& gate() { return gate_; }
  Rounds& rounds() { return rounds_; }
  Clock::time_point deadline() const { return deadline_after(info_.options.timeout); }

  // Waits for all ranks to join. Collective; throws RendezvousError naming a rank that does not.
  void join(const char* backend);
  // Marks this rank as gone, with the reason if it leaves because of an error.
  void leave();
  // Sets the reason why this rank will leave; "" clears it. See Comm::leaving.
  void note_leaving(std::string_view why);
  // See Comm::gave_up.
  void give_up(std::string_view why);

  // `tensors`: those that the operation reads and writes.
  WorkPtr issue(RoundOpPtr op, int64_t elements, at::ScalarType type, int argument, OpInfo info,
                std::vector<at::Tensor> tensors);
  WorkPtr message(const at::Tensor& tensor, int peer, bool sending, const OpInfo& info);
  void run_now(const WorkPtr& work) { work->wait(info_.options.timeout, true); }

  void abort(std::string_view reason) { gate_.report(CommFault::aborted, info_.rank, reason); }
  void throw_if_faulted(const RoundOp& context) {
    named([&] { rounds_.throw_if_faulted(context); });
  }

  // Runs `fn`. Errors of the engine have group ranks; here they get world ranks, hosts and processes.
  template <class Fn>
  auto named(Fn fn) -> decltype(fn()) {
    if (abandoned_)
      abort(
          "an exception of its own dropped work in flight that the others had not come to yet, and "
          "it used the group again. Wait for work before what may throw, or make a new group");
    try {
      return fn();
    } catch (const CommError& error) {
      throw_named(error);
    }
  }

 private:
  class CollectiveWork;
  class MessageWork;

  void show(const std::string& activity, uint64_t meetings, bool several_threads) override {
    gate_.show(activity, several_threads ? Gate::kNoMeetings : meetings);
  }
  std::string activity_of(int world_rank) const override;
  std::optional<GroupFault> fault() const override;
  void look_elsewhere();
  [[noreturn]] void throw_named(const CommError& error) const;
  void drop(const std::function<bool()>& complete);
  void note_why();

  GroupInfo info_;
  Gate gate_;
  Messages messages_;
  Rounds rounds_;
  bool abandoned_ = false;  // an exception dropped work that is not complete
};

}  // namespace fsdp::detail
