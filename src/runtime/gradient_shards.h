// GradientShards: this rank's shards of the gradients, and the reduces in flight into them.
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
  // `mode`: null, or the mode that adds up several backwards. `host`: null, or host memory in which gradient
  // shards may be kept.
  GradientShards(const Mesh& mesh, StepMode* mode, Policy policy, HostSide* host)
      : mesh_(mesh), mode_(mode), policy_(policy), host_(host) {}
  ~GradientShards() {
    for (Pending& one : pending_) one.work.drop();  // a backward has failed
  }
  GradientShards(const GradientShards&) = delete;
  GradientShards& operator=(const GradientShards&) = delete;

  // Gives the region a gradient shard if it has none.
  void make(UnitRegion& region);
  // Makes `sum`, which nothing else uses, times `scale` the gradient shard; undefined: zero.
  void take(UnitRegion& region, const at::Tensor& sum, double scale);
  // Hands reduced gradients over to the optimizer. See Note [Gradient shards].
  void let_go(const std::vector<std::shared_ptr<Unit>>& units) const;
  // The region has no gradient shard any more, whatever its slices hold.
  static void forget(UnitRegion& region);
  // At the end of a backward: gives the slice its reduced gradient.
  void show(UnitParam& param) const;
  // True if a sum of this backward is in the gradient shard, or being reduced into it.
  bool busy(const UnitRegion& region) const;
  // True if an optimizer would see a gradient of the region.
  static bool has_gradient(const UnitRegion& region);

  // Starts to reduce the unit's buffers. `used`: the parameters for which any rank has a gradient.
  void reduce(const Unit& unit, const std::vector<bool>& used);
  // Waits for the row's sum, and starts to sum it over the rows of the mesh.
  void reduce_across(const Unit& unit);
  // Finishes the unit's reductions into the shards. `schedule` tells an optimizer that steps in backward
  // whether this cycle uses the unit once more, so that it must not change before; null: the backward ends.
  void settle(const Unit& unit, const Schedule* schedule);
  // no_sync() keeps the region's sums in the row of the mesh.
  bool stays_in_row(const UnitRegion& region) const { return held_in_row && region.reduce_path->crosses(); }
  // The backward ends: sums over the rows what was kept in rows for units that this backward did not reduce.
  void reduce_left_in_rows(const std::vector<std::shared_ptr<Unit>>& units);

  bool held_in_row = false;
  bool graph_stays = false;  // in the current backward
  // Reductions that have not settled, in the order in which they were started.
  std::vector<InFlight> in_flight() const;
  // True if an optimizer updates regions as their gradients arrive.
  bool steps_in_backward() const { return host_ != nullptr && host_->stepper; }
  // The backward ends: waits for sums that are kept in host memory, or promises updates with them.
  void end_in_host_memory();
  // Waits for reductions in flight and forgets them.
  void drop_pending();

 private:
  // A reduce in flight.
  struct Pending {
    UnitRegion* region;
    at::Tensor buffer;  // other ranks read it until it is claimed
    at::Tensor result;  // to be added or cast into the gradient shard; undefined: already there
    Work work;
    bool across;  // its path has still to cross the rows of the mesh
    bool stays_in_row = false;
    std::optional<c10::Stream> made_on = {};  // the stream of the memory of `result`
  };

  // True if every slice of the region has its gradient in `storage`.
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
  std::vector<std::pair<UnitRegion*, std::shared_ptr<c10::Event>>> postponed_;  // updates due at the end
  std::vector<UnitRegion*> stepped_;  // regions with an update in this backward
};

}  // namespace fsdp::detail
