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

  // The arena is memory that `comm` allocates for gathers; null: it is this rank's own. Before reserve().
  void share(Comm* comm) { sharer_ = comm; }

  // The memory slots come from; what is in it must be released. Collective where several ranks share it.
  void reserve(int64_t bytes);
  const at::Tensor& arena() const { return arena_; }
  int64_t arena_bytes() const { return arena_.defined() ? arena_.numel() : 0; }
  int64_t overflow_bytes() const;  // of slots outside the arena
  // The slots a model needs before its plan is known.
  static int64_t first_estimate(const std::vector<std::shared_ptr<Unit>>& units, int max_slots);

  // Where the model is.
  void enter_phase(Phase phase) { phase_ = phase; }
  // Whether a backward may come, for which reshard groups save units. All ranks say the same.
  void expect_backward(bool on) { expects_backward_ = on; }
  // The plan has come to its next moment: what it released while an operator held it goes now.
  void release_overdue();
  // Carries out one instruction of a plan. False, with nothing lost, when memory is not as the plan thought.
  bool obey(const Instruction& step, Unit& unit);
  // Has just `expected` gathered or on their way. False as above.
  bool change_over(const std::vector<Place>& expected, const std::vector<std::shared_ptr<Unit>>& units);
  // Makes `unit` readable now, in whatever memory there is. Returns what was done for it.
  std::vector<Instruction> gather_now(Unit& unit, const std::vector<std::shared_ptr<Unit>>& units);
  // Starts to gather `unit`, for whoever reads it next.
  void gather_ahead(Unit& unit);
  // An operator reads `unit`, which is gathered: on another stream than before, maybe.
  void read(Unit& unit);
  void release(Unit& unit);
  // Releases `unit`, which one operator is about to read: its shards were written since it was gathered.
  void renew(Unit& unit);
  void release_all();
  // Those that are not in the arena.
  void release_overflow();
  // Those that are there: waits for nobody.
  void release_gathered();
  // Gathers in flight go on without us, and nobody will read what they bring.
  void drop_gathers();
  // What is kept of `unit` for a backward is not needed.
  void drop_saved(Unit& unit);
  // The current stream has waited for all that took part so far.
  void forget_streams() { readers_.clear(); }
  // Goes into the label of the next gather: ranks that went different ways read there how.
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
  std::vector<Unit*> overdue_;   // the plan has released them, and an operator held them then
  std::vector<Unit*> resident_;  // gathering or gathered, least recently demanded first
  StreamSet readers_;            // of any unit
  Phase phase_ = Phase::forward;
  bool expects_backward_ = false;
  bool warned_ = false;
  std::string remark_;
};

}  // namespace fsdp::detail
