// Mesh: the groups of ranks in which a sharded model communicates.
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
// Ranks form a grid: a row holds one replica of the model, sharded over its ranks; a column holds the same
// shard in every row. Gathers and reduce-scatters stay in the row; their sums are all-reduced over the
// column. Rows follow hosts (Note [Rows follow hosts]). If ranks are numbered host by host, the ranks of a
// row are consecutive, so that sums over a row and then over the rows follow the tree of sums over all ranks.
// Without a hybrid strategy there is one row, with all ranks.
struct Mesh {
  Comm all;                                 // for agreement, and for parameters that are whole on every rank
  Comm row;                                 // the same group as `all` if there is one row
  std::optional<Comm> column;               // none if there is one row
  std::vector<int> row_ranks;               // world rank of each rank of the row
  std::vector<int> places;                  // rank in its row of each world rank
  std::map<int, Comm> reshard_groups = {};  // parts of the row, by number of ranks
  std::vector<Comm> adopted = {};           // rows of models that became part of this one

  // The part of the row with `ranks` ranks, including this one: Note [Reshard groups]. Collective.
  Comm reshard_group(int ranks);
  // The world rank of a rank of this row.
  int in_world(int rank_in_row) const { return row_ranks[static_cast<size_t>(rank_in_row)]; }
  // The index of this rank's shard in a unit that `ranks` hold together.
  int shard_index(int ranks) const { return ranks > 1 ? row.rank() : 0; }
  void check_order(bool now);
  // Sets the reason for peers that miss this rank later; empty: none.
  void leaving(std::string_view why);
  // As leaving(), for a rank that skips operations: see Comm::gave_up().
  void gave_up(std::string_view why);
  // All groups, each once.
  std::vector<Comm> groups() const;
  // Statistics of all groups together, by operation.
  std::vector<OpStats> stats() const;
};

// `all` is the group of all ranks. Collective. Throws c10::Error, the same on all ranks, if they cannot form
// rows of `options.shard_size`.
Mesh make_mesh(const World& world, const ShardOptions& options, Comm all);

// Number of ranks in a row. Throws as make_mesh() does, before a group is made.
int row_size(const World& world, const ShardOptions& options);

bool is_hybrid(Strategy strategy);

}  // namespace fsdp::detail
