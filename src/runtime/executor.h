// Gathers units into slots and releases them, as the plan says or when an operator needs one.
#pragma once

#include <fsdp/comm.h>

#include <string>
#include <utility>
#include <vector>

#include "plan/on_demand.h"
#include "runtime/unit.h"

namespace fsdp::detail {

class Executor {
 public:
  Executor(c10::Device device, int max_slots);

  // Makes `comm` allocate the arena, as memory for gathers; null: this rank's own. Call it before reserve().
  void share(Comm* comm) { sharer_ = comm; }

  // Allocates the arena; all slots must be released. Collective if several ranks share it.
  void reserve(int64_t bytes);
  const at::Tensor& arena() const { return arena_; }
  int64_t arena_bytes() const { return arena_.defined() ? arena_.numel() : 0; }
  int64_t overflow_bytes() const;  // bytes of slots outside the arena
  // The slots a model needs before its plan is known.
  static int64_t first_estimate(const std::vector<std::shared_ptr<Unit>>& units, int max_slots);

  // The phase that the model is in.
  void enter_phase(Phase phase) { phase_ = phase; }
  // If a backward may come, reshard groups save units for it. All ranks say the same.
  void expect_backward(bool on) { expects_backward_ = on; }
  // The plan has reached its next schedule point: releases units that were due but held by an operator.
  void release_overdue();
  // Carries out one instruction of a plan. Returns false, with nothing lost, if memory is not as planned.
  bool obey(const Instruction& step, Unit& unit);
  // Makes exactly `expected` gathered or being gathered. Returns false as above.
  bool change_over(const std::vector<Place>& expected, const std::vector<std::shared_ptr<Unit>>& units);
  // Gathers `unit` now, outside the plan. Returns the instructions it carried out.
  std::vector<Instruction> gather_now(Unit& unit, const std::vector<std::shared_ptr<Unit>>& units);
  // Starts to gather `unit` for its next reader.
  void gather_ahead(Unit& unit);
  // An operator reads the gathered `unit`, maybe on another stream than before.
  void read(Unit& unit);
  void release(Unit& unit);
  // Releases `unit`, which one operator is about to read, because its shards were written since the gather.
  void renew(Unit& unit);
  void release_all();
  // Releases the units that are not in the arena.
  void release_overflow();
  // Releases the units that are gathered, and waits for none.
  void release_gathered();
  // Drops gathers in flight: they continue, and their values will not be read.
  void drop_gathers();
  // Drops the part of `unit` saved for a backward.
  void drop_saved(Unit& unit);
  // The current stream has waited for all that took part so far.
  void forget_streams() { readers_.clear(); }
  // Added to the label of the next gather, to tell ranks with a different execution order how they differ.
  void remark(std::string text) { remark_ = std::move(text); }

 private:
  void gather(Unit& unit, int64_t offset);
  void save_for_backward(Unit& unit);
  void use(Unit& unit);
  at::Tensor allocate(int64_t bytes) const;
  at::Tensor own_memory(int64_t bytes) const;
  bool is_free(int64_t offset, int64_t bytes) const;
  template <class Which>
  void release_if(Which which);
  Slots slots() const;
  void warn_of_overflow(int64_t bytes);

  Comm* sharer_ = nullptr;
  c10::Device device_;
  int max_slots_;
  at::Tensor arena_;             // [bytes]
  std::vector<Unit*> overdue_;   // released by the plan while an operator held them
  std::vector<Unit*> resident_;  // gathering or gathered, least recently demanded first
  StreamSet readers_;            // streams that read any unit
  Phase phase_ = Phase::forward;
  bool expects_backward_ = false;
  bool warned_ = false;
  std::string remark_;
};

}  // namespace fsdp::detail
