#include "runtime/mesh.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "base/log.h"
#include "launch/world_state.h"
#include "layout/rows.h"

namespace fsdp::detail {

bool is_hybrid(Strategy strategy) {
  return strategy == Strategy::hybrid_shard || strategy == Strategy::hybrid_shard_zero2;
}

namespace {

Rows one_row(int ranks) {
  Rows rows;
  rows.size = ranks;
  rows.ranks.emplace_back();
  for (int rank = 0; rank < ranks; ++rank) {
    rows.ranks.front().push_back(rank);
    rows.row.push_back(0);
    rows.place.push_back(rank);
  }
  rows.consecutive = true;
  return rows;
}

// The same on all ranks, errors too, since it uses facts that every rank knows.
Rows rows_of(const World& world, const ShardOptions& options) {
  if (!is_hybrid(options.strategy)) {
    TORCH_CHECK(options.shard_size == 0, "fsdp: shard_size ", options.shard_size,
                " without a hybrid strategy; use Strategy::hybrid_shard or hybrid_shard_zero2");
    return one_row(world.size());
  }
  std::vector<HostOfRank> hosts;
  for (const Peer& peer : world.peers()) hosts.push_back({peer.host_id, peer.hostname});
  Rows rows = make_rows(hosts, options.shard_size);
  TORCH_CHECK(rows.refusal.empty(), "fsdp: ", rows.refusal);
  TORCH_CHECK(
      rows.consecutive || !options.reproducible,
      "fsdp: reproducible: ranks go round the hosts, so that the rows of a hybrid strategy, which lie "
      "inside hosts, are not consecutive ranks, and sums would follow another tree. Number the ranks "
      "host by host (srun --distribution=block, mpirun --map-by slot), or use full_shard");
  return rows;
}

void warn_of_rows(const World& world, const Rows& rows, const ShardOptions& options) {
  const bool shards_nothing =
      is_hybrid(options.strategy) && options.shard_size == 0 && rows.size == 1 && world.size() > 1;
  if ((!rows.crosses && !shards_nothing) || world.rank() != 0) return;
  if (world.state().warned_of_rows.exchange(true)) return;
  if (shards_nothing)
    return log_warn(
        "HYBRID_SHARD shards nothing here: every rank is alone on its host, so each holds the whole model. "
        "Containers with process numbers of their own count as hosts. Set shard_size to the number of ranks "
        "that are to hold a model together, or use FULL_SHARD");
  log_warn("rows of " + std::to_string(rows.size) +
           " ranks (shard_size) do not fit the hosts: some row has ranks of several hosts, and every gather "
           "in it goes over the network. Set shard_size to a divisor of the ranks of every host");
}

}  // namespace

int row_size(const World& world, const ShardOptions& options) { return rows_of(world, options).size; }

Mesh make_mesh(const World& world, const ShardOptions& options, Comm all) {
  const Rows rows = rows_of(world, options);
  warn_of_rows(world, rows, options);
  const auto rank = static_cast<size_t>(world.rank());
  const std::vector<int>& mine = rows.ranks[static_cast<size_t>(rows.row[rank])];
  if (rows.size == world.size()) return {all, all, std::nullopt, mine, rows.place};
  Comm row = all.split(rows.row[rank], "row");
  return {all, row, all.split(rows.place[rank], "column"), mine, rows.place};
}

Comm Mesh::reshard_group(int ranks) {
  TORCH_CHECK(ranks > 0 && row.size() % ranks == 0, "fsdp: reshard_group ", ranks, " does not divide the ",
              row.size(), " ranks that a unit is sharded over");
  if (ranks == row.size()) return row;
  const auto known = reshard_groups.find(ranks);
  if (known != reshard_groups.end()) return known->second;
  return reshard_groups.emplace(ranks, row.split(row.rank() / ranks, "part of a row")).first->second;
}

std::vector<Comm> Mesh::groups() const {
  std::vector<Comm> groups{all};
  if (column) groups.insert(groups.end(), {row, *column});
  for (const auto& [ranks, group] : reshard_groups) groups.push_back(group);
  groups.insert(groups.end(), adopted.begin(), adopted.end());
  return groups;
}

void Mesh::check_order(bool now) {
  for (Comm group : groups()) group.check_order(now);
}

void Mesh::leaving(std::string_view why) {
  for (Comm group : groups()) group.leaving(why);
}

void Mesh::gave_up(std::string_view why) {
  for (Comm group : groups()) group.gave_up(why);
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
