#include "runtime/mesh.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace fsdp::detail {

bool is_hybrid(Strategy strategy) {
  return strategy == Strategy::hybrid_shard || strategy == Strategy::hybrid_shard_zero2;
}

namespace {

int row_size(const World& world, const ShardOptions& options) {
  if (!is_hybrid(options.strategy)) {
    TORCH_CHECK(options.shard_size == 0, "fsdp: shard_size ", options.shard_size,
                " without a hybrid strategy; use Strategy::hybrid_shard or hybrid_shard_zero2");
    return world.size();
  }
  const int size = options.shard_size > 0 ? options.shard_size : world.local_size();
  TORCH_CHECK(options.shard_size >= 0 && world.size() % size == 0, "fsdp: ", world.size(),
              " ranks cannot be rows of ", options.shard_size > 0 ? options.shard_size : size,
              options.shard_size > 0 ? " (shard_size)" : " (the ranks of this host)",
              "; set shard_size to a divisor of the number of ranks");
  return size;
}

}  // namespace

Mesh make_mesh(const World& world, const ShardOptions& options, Comm all) {
  const int size = row_size(world, options);
  if (size == world.size()) return {all, all, std::nullopt};
  Comm row = all.split(world.rank() / size, "row");
  return {all, row, all.split(world.rank() % size, "column")};
}

Comm Mesh::part(int ranks) {
  TORCH_CHECK(ranks > 0 && row.size() % ranks == 0, "fsdp: reshard_group ", ranks, " does not divide the ",
              row.size(), " ranks that a unit is sharded over");
  if (ranks == row.size()) return row;
  const auto known = parts.find(ranks);
  if (known != parts.end()) return known->second;
  return parts.emplace(ranks, row.split(row.rank() / ranks, "part of a row")).first->second;
}

std::vector<Comm> Mesh::groups() const {
  std::vector<Comm> groups{all};
  if (column) groups.insert(groups.end(), {row, *column});
  for (const auto& [ranks, part] : parts) groups.push_back(part);
  groups.insert(groups.end(), adopted.begin(), adopted.end());
  return groups;
}

void Mesh::check_order(bool now) {
  for (Comm group : groups()) group.check_order(now);
}

void Mesh::leaving(std::string_view why) {
  for (Comm group : groups()) group.leaving(why);
}

std::vector<OpStats> Mesh::stats() const {
  std::vector<OpStats> total;
  for (const Comm& group : groups()) {
    for (const OpStats& one : group.stats()) {
      const auto same =
          std::find_if(total.begin(), total.end(), [&](const OpStats& seen) { return seen.op == one.op; });
      if (same == total.end()) {
        total.push_back(one);
        continue;
      }
      same->count += one.count;
      same->bytes += one.bytes;
      same->seconds += one.seconds;
    }
  }
  return total;
}

}  // namespace fsdp::detail
