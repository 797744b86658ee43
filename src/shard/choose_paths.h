// Chooses the gather path and the reduce path of every region. See Note [Paths].
#pragma once

#include <fsdp/options.h>

#include <memory>

#include "runtime/mesh.h"
#include "runtime/policy.h"
#include "runtime/unit.h"
#include "transfer/side_stream.h"

namespace fsdp::detail {

class PathChoice {
 public:
  // `in_order`: gradients are summed along the tree of sums, in reproducible mode.
  PathChoice(Mesh& mesh, const ShardOptions& options, c10::Device device, bool in_order);

  // True if shards may lie side by side in memory that ranks share: Note [Shared shards].
  bool may_share() const;
  // Chooses for a region that has its shard. `shared`: memory of all ranks' shards; undefined: not shared.
  void choose(UnitRegion& region, const at::Tensor& shared) const;
  // For a unit whose paths were chosen by another model.
  void choose_again(Unit& unit) const;

 private:
  GatherPathPtr gather_path(const UnitRegion& region, const at::Tensor& shared) const;
  GatherPathPtr from_host(const UnitRegion& region) const;
  ReducePathPtr reduce_path(const UnitRegion& region) const;

  Mesh& mesh_;
  const ShardOptions& options_;
  bool in_order_;
  std::shared_ptr<SideStream> side_;  // null: casts run on the current stream
};

}  // namespace fsdp::detail
