// This rank's shards of the gradients, and the reduces on their way into them.
#pragma once

#include <fsdp/comm.h>

#include <deque>
#include <memory>
#include <vector>

#include "plan/on_demand.h"
#include "plan/schedule.h"
#include "runtime/mesh.h"
#include "runtime/policy.h"
#include "runtime/step_mode.h"
#include "runtime/unit.h"
#include "transfer/host_side.h"

namespace fsdp::detail {

class GradientShards {
 public:
  // `mode`: null, or who puts sums of several backwards together.
  // `host`: null, or where gradient shards may be kept.
  GradientShards(const Mesh& mesh, StepMode* mode, Policy policy, HostSide* host)
      : mesh_(mesh), mode_(mode), policy_(policy), host_(host) {}
  ~GradientShards() {
    for (Pending& one : pending_) one.work.drop();  // a backward has failed
  }
  GradientShards(const GradientShards&) = delete;
  GradientShards& operator=(const GradientShards&) = delete;

  // Sees to it that the region has a gradient shard.
  void make(UnitRegion& region);
  // The gradient shard becomes `sum`, which nobody else needs, times `scale`; zero where it is undefined.
  void take(UnitRegion& region, const at::Tensor& sum, double scale);
  // What was reduced belongs to the optimizer now. See Note [Gradient shards].
  void let_go(const std::vector<std::shared_ptr<Unit>>& units) const;
  // The region has no gradient shard any more, whatever its slices hold.
  static void forget(UnitRegion& region);
  // At the end of a backward: the slice gets what was summed for it.
  void show(UnitParam& param) const;
  // A sum of this backward is in the gradient shard, or on its way there.
  bool busy(const UnitRegion& region) const;
  // Whether an optimizer would see a gradient of the region.
  static bool has_gradient(const UnitRegion& region);

  // Starts reducing the unit's buffers. `used`: which parameters have a gradient on some rank.
  void reduce(const Unit& unit, const std::vector<bool>& used);
  // The row's sum is waited for, and summed over the rows of the mesh.
  void reduce_across(const Unit& unit);
  // What was reduced arrives in the shards. An optimizer that steps in backward asks `schedule` whether the
  // unit is used once more in this cycle, and must not change before. `schedule`: null: the backward ends.
  void settle(const Unit& unit, const Schedule* schedule);
  // no_sync() keeps the region's sums in the row of the mesh.
  bool stays_in_row(const UnitRegion& region) const { return held_in_row && region.reduce_path->crosses(); }
  // The backward ends: what was kept in rows of units that it did not reduce is summed over the rows.
  void reduce_left_in_rows(const std::vector<std::shared_ptr<Unit>>& units);

  bool held_in_row = false;
  bool graph_stays = false;  // of the backward in progress
  // Reductions that have not settled, in the order in which they were started.
  std::vector<InFlight> in_flight() const;
  // An optimizer updates regions as their gradients come.
  bool steps_in_backward() const { return host_ != nullptr && host_->stepper; }
  // The backward ends: sums that are kept in host memory are there, or updates with them are promised.
  void end_in_host_memory();
  // Waits for what is on its way and forgets it.
  void drop_pending();

 private:
  // A reduce in flight.
  struct Pending {
    UnitRegion* region;
    at::Tensor buffer;  // read by others until it is claimed
    at::Tensor result;  // what is added or cast into the gradient shard; undefined: it is there already
    Work work;
    bool across;  // its path has still to cross the rows of the mesh
    bool stays_in_row = false;
    std::optional<c10::Stream> made_on = {};  // the memory of `result`
  };

  // Whether every slice of the region has its gradient in `storage`.
  static bool all_show(const UnitRegion& region, const c10::StorageImpl& storage);
  // Slices of the gradient shard, per parameter.
  void cut(UnitRegion& region) const;
  void reduce_region(UnitRegion& region, const std::vector<bool>& used);
  bool is_pending(const UnitRegion& region) const;
  void reduce_for_mode(UnitRegion& region, const std::vector<bool>& used);
  std::optional<c10::Stream> current_stream(c10::Device device) const;
  void hand_over(std::optional<c10::Stream>& made_on, const c10::DataPtr& memory) const;
  at::Tensor fresh_shard(const UnitRegion& region) const;
  void finish(Pending& pending, const Schedule* schedule);
  void arrive(UnitRegion& region, const at::Tensor& sum, const Schedule* schedule);
  void reduce_in_row(UnitRegion& region, const std::vector<bool>& used);
  static void keep_in_row(UnitRegion& region, const at::Tensor& sum);
  static at::Tensor take_from_row(UnitRegion& region);
  static bool is_used(const UnitRegion& region);
  static void check_steps(const UnitRegion& region, bool adds);
  void step(UnitRegion& region, std::shared_ptr<c10::Event> arrived);
  // `schedule`: null: the backward ends.
  void bring_to_host(UnitRegion& region, const at::Tensor& sum, bool adds, const Schedule* schedule);

  const Mesh& mesh_;
  StepMode* mode_;
  Policy policy_;
  HostSide* host_;
  std::deque<Pending> pending_;
  std::vector<std::pair<UnitRegion*, std::shared_ptr<c10::Event>>> postponed_;  // updates, to the end
  std::vector<UnitRegion*> stepped_;  // regions with an update in this backward
};

}  // namespace fsdp::detail
