// This rank's shards of the gradients, and the reduces on their way into them.
#pragma once

#include <fsdp/comm.h>

#include <deque>
#include <memory>
#include <vector>

#include "runtime/mesh.h"
#include "modes/reproducible.h"
#include "runtime/unit.h"

namespace fsdp::detail {

class GradientShards {
 public:
  GradientShards(Mesh& mesh, const Reproduction* reproduction, std::shared_ptr<const Codec> codec,
                 c10::Device device)
      : mesh_(mesh), reproduction_(reproduction), codec_(std::move(codec)), device_(device) {}
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
  static void show(UnitParam& param);
  // A sum of this backward is in the gradient shard, or on its way there.
  bool busy(const UnitRegion& region) const;
  // Whether an optimizer would see a gradient of the region.
  static bool has_gradient(const UnitRegion& region);

  // Starts reducing the unit's buffers. `used`: which parameters have a gradient on some rank.
  // `boundary`: now, see Note [Cycles].
  void reduce(const Unit& unit, const std::vector<bool>& used, int32_t boundary);
  // What was started before `boundary` arrives in the shards.
  void finish_before(int32_t boundary);
  void finish_all();
  // Waits for what is on its way and forgets it.
  void drop_pending();

 private:
  // A reduce in flight.
  struct Pending {
    UnitRegion* region;
    at::Tensor buffer;  // read by others until it is claimed
    at::Tensor result;  // what is added or cast into the gradient shard; undefined: it is there already
    Work work;
    bool across;     // it has still to be summed over the rows of the mesh
    int32_t issued;  // boundaries passed then
  };

  // Whether every slice of the region has its gradient in `storage`.
  static bool all_show(const UnitRegion& region, const c10::StorageImpl& storage);
  // Slices of the gradient shard, per parameter.
  void cut(UnitRegion& region) const;
  void reduce_region(UnitRegion& region, const std::vector<bool>& used, int32_t boundary);
  bool in_flight(const UnitRegion& region) const;
  void reduce_across(Pending& pending);
  void reduce_coded(const Pending& pending, const Unit& unit);
  void reduce_in_order(UnitRegion& region, const std::vector<bool>& used);
  static void finish(Pending& pending);

  Mesh& mesh_;
  const Reproduction* reproduction_;
  std::shared_ptr<const Codec> codec_;  // of gradients on their way in the row; may be null
  c10::Device device_;
  std::deque<Pending> pending_;
};

}  // namespace fsdp::detail
