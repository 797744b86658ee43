// Which gather path and which reduce path a region takes. See Note [Paths].
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

  // Whether shards may lie side by side in memory that ranks share: Note [Shared shards].
  bool may_share() const;
  // The region has its shard. `shared`: the memory of all ranks' shards; undefined: they are apart.
  void choose(UnitRegion& region, const at::Tensor& shared) const;
  // For a unit that another model chose paths for.
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
