#include "shard/choose_paths.h"

#include <utility>

namespace fsdp::detail {

namespace {

// Codecs are for real and complex numbers; integers are sent as they are.
bool codable(const UnitRegion& region) { return !c10::isIntegralType(region.master(), /*includeBool=*/true); }

}  // namespace

PathChoice::PathChoice(Mesh& mesh, const ShardOptions& options, c10::Device device, bool in_order)
    : mesh_(mesh), options_(options), in_order_(in_order) {
  if (policy_of(device).casts_on_side_stream) side_ = std::make_shared<SideStream>(device);
}

bool PathChoice::may_share() const {
  return options_.share_shards && !options_.gather_codec && mesh_.row.shares_memory();
}

void PathChoice::choose(UnitRegion& region, const at::Tensor& shared) const {
  region.gather_path = gather_path(region, shared);
  region.reduce_path = reduce_path(region);
}

// Shards that lie side by side stay there, and are gathered in place unless there is a codec.
void PathChoice::choose_again(Unit& unit) const {
  if (unit.spec.reshard_group > 0) mesh_.reshard_group(unit.spec.reshard_group);
  for (const auto& region : unit.regions) {
    if (!region->gather_path->peers_read_shard() || options_.gather_codec) {
      region->spec.shared_shards = false;
      region->gather_path = gather_path(*region, {});
    }
    region->reduce_path = reduce_path(*region);
  }
}

GatherPathPtr PathChoice::gather_path(const UnitRegion& region, const at::Tensor& shared) const {
  const Unit& unit = *region.unit;
  if (region.spec.in_place()) return gather_in_place(region.shard);
  if (region.host) return from_host(region);
  if (unit.ranks() == 1) return gather_by_cast(region.shard, side_);
  if (shared.defined()) return gather_shared_shards(mesh_.row, region.shard, shared);
  GatherPathPtr path = options_.gather_codec && codable(region)
                           ? gather_through_codec(mesh_.row, region.shard, options_.gather_codec)
                           : gather_over_row(mesh_.row, region.shard);
  if (unit.spec.reshard_group == 0) return path;
  const bool shared_slots = mesh_.row.shares_memory() && !options_.gather_codec;
  return gather_from_reshard_group(mesh_.reshard_group(unit.spec.reshard_group), shared_slots,
                                   std::move(path));
}

GatherPathPtr PathChoice::from_host(const UnitRegion& region) const {
  const Unit& unit = *region.unit;
  GatherPathPtr path =
      gather_from_host(unit.ranks() > 1 ? &mesh_.row : nullptr, region.shard, region.host, side_);
  if (unit.ranks() == 1 || unit.spec.reshard_group == 0) return path;
  return gather_from_reshard_group(mesh_.reshard_group(unit.spec.reshard_group), /*shared_slots=*/false,
                                   std::move(path));
}

ReducePathPtr PathChoice::reduce_path(const UnitRegion& region) const {
  const Unit& unit = *region.unit;
  const bool whole = unit.ranks() == 1;
  const ReduceOp op = unit.spec.average ? ReduceOp::average : ReduceOp::sum;
  if (mesh_.all.size() == 1)
    return region.spec.gradient_on_host || unit.spec.divide_by != 0 ? reduce_alone_in_buffer()
                                                                    : reduce_alone();
  if (in_order_)
    return whole ? reduce_whole_along_tree(mesh_.all)
                 : reduce_along_tree(mesh_.row, mesh_.column ? &*mesh_.column : nullptr);
  if (whole) return reduce_whole(mesh_.all, op);
  ReducePathPtr path = options_.reduce_codec && codable(region)
                           ? reduce_through_codec(mesh_.row, op, options_.reduce_codec)
                           : reduce_over_row(mesh_.row, op);
  return mesh_.column ? reduce_across_rows(*mesh_.column, op, std::move(path)) : std::move(path);
}

}  // namespace fsdp::detail
