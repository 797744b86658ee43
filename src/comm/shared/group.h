// One rank's place in a group on shared memory: issues operations and messages as Work, and reports faults in
// the words people know.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/await.h"
#include "comm/shared/rounds.h"

namespace fsdp::detail {

// What a call is about, for the errors of calls that are no operation themselves. It begins now.
RoundOp context_of(OpInfo info);

class SharedGroup {
 public:
  SharedGroup(const GroupInfo& info, ControlView view, std::unique_ptr<Liveness> liveness);

  const GroupInfo& info() const { return info_; }
  const ControlView& view() const { return gate_.view(); }
  Gate& gate() { return gate_; }
  Rounds& rounds() { return rounds_; }
  Clock::time_point deadline() const { return deadline_after(info_.options.timeout); }

  // Waits for all ranks to come. Collective; throws RendezvousError naming one that does not.
  void join(const char* backend);
  // Marks this rank as gone, and says why where it goes because of an error.
  void leave();
  // Why this rank will leave; "" takes it back. See Comm::leaving.
  void note_leaving(std::string_view why);
  // See Comm::gave_up.
  void give_up(std::string_view why);

  // `tensors`: what the operation reads and writes.
  WorkPtr issue(RoundOpPtr op, int64_t elements, at::ScalarType type, int argument, OpInfo info,
                std::vector<at::Tensor> tensors);
  WorkPtr message(const at::Tensor& tensor, int peer, bool sending, const OpInfo& info);
  void run_now(const WorkPtr& work) { work->wait(info_.options.timeout, true); }

  void abort(std::string_view reason) { gate_.report(CommFault::aborted, info_.rank, reason); }
  void throw_if_faulted(const RoundOp& context) {
    named([&] { rounds_.throw_if_faulted(context); });
  }

  // Runs `fn`. The engine counts ranks within the group; people know world ranks, hosts and processes.
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
