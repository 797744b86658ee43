// The groups of ranks a sharded model communicates in.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/options.h>
#include <fsdp/world.h>

#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace fsdp::detail {

// Note [Mesh]
// Ranks are a grid: a row holds one copy of the model between its ranks, a column holds the same shard in
// every row. Gathers and reduce-scatters stay in the row; what they leave is all-reduced over the column.
// Rows follow hosts (Note [Rows follow hosts]). Where ranks are numbered host by host, the ranks of a row are
// consecutive, so that sums over a row and then over the rows follow the tree of sums over all ranks. Without
// a hybrid strategy there is one row: all.
struct Mesh {
  Comm all;                                 // agreement, and parameters that are whole on every rank
  Comm row;                                 // the same group as `all` where there is one row
  std::optional<Comm> column;               // none where there is one row
  std::vector<int> row_ranks;               // the rank in the world of each rank of the row
  std::vector<int> places;                  // the rank in its row of each rank in the world
  std::map<int, Comm> reshard_groups = {};  // parts of the row, by their size
  std::vector<Comm> adopted = {};           // rows of models that became part of this one

  // The part of the row with `ranks` ranks, this one among them: Note [Reshard groups]. Collective.
  Comm reshard_group(int ranks);
  // The rank in the world of a rank of this row.
  int in_world(int rank_in_row) const { return row_ranks[static_cast<size_t>(rank_in_row)]; }
  // Which shard of a unit is this rank's, where `ranks` hold it between them.
  int shard_index(int ranks) const { return ranks > 1 ? row.rank() : 0; }
  void check_order(bool now);
  // Peers that miss this rank are told `why`; empty: it goes on.
  void leaving(std::string_view why);
  // As leaving(), of a rank that leaves out operations: see Comm::gave_up().
  void gave_up(std::string_view why);
  // Each once.
  std::vector<Comm> groups() const;
  // Of all groups together, by operation.
  std::vector<OpStats> stats() const;
};

// `all` is the group of all ranks. Collective. Throws c10::Error, the same on all ranks, when they cannot be
// rows of `options.shard_size`.
Mesh make_mesh(const World& world, const ShardOptions& options, Comm all);

// The ranks of a row. Throws as make_mesh() does, before a group is made.
int row_size(const World& world, const ShardOptions& options);

bool is_hybrid(Strategy strategy);

}  // namespace fsdp::detail
