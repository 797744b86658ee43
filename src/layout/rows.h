// The rows of the mesh: a row has ranks of one host, in whatever order ranks are numbered.
#pragma once

#include <string>
#include <vector>

namespace fsdp::detail {

// The host of one rank. Ranks with equal ids are on one host; the name is for people.
struct HostOfRank {
  std::string id;
  std::string name;
};

// Note [Rows follow hosts]
// Launchers number ranks by host (block) or go round the hosts (cyclic). Ranks are sorted by host, in the
// order of the hosts' first ranks, and then by rank, so that the ranks of a host are neighbours. This list is
// cut into rows of equal size: a row then lies inside a host wherever the size allows it. Within a row ranks
// keep their order, as in Comm::split. Every rank computes the same table from the same list.
struct Rows {
  int size = 0;                         // number of ranks in a row
  std::vector<std::vector<int>> ranks;  // by row, ascending
  std::vector<int> row;                 // by rank
  std::vector<int> place;               // by rank: its index in its row
  bool crosses = false;      // a row has ranks of several hosts, though some host has enough for a row
  bool consecutive = false;  // row r is ranks r * size, r * size + 1, ...
  std::string refusal;       // the reason if there are no rows, with advice; the other fields are empty then
};

// `shard_size` 0: a row is a host.
Rows make_rows(const std::vector<HostOfRank>& hosts, int shard_size);

}  // namespace fsdp::detail
