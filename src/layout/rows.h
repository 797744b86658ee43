// Which ranks form a row of the mesh: those of one host, whatever their order.
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
// Launchers number ranks by host (block) or go round the hosts (cyclic). Sorted by host, in the order of the
// hosts' first ranks, and then by rank, the ranks of a host are neighbours; cut into rows of equal size, a
// row lies inside a host wherever the size allows it. Within a row ranks keep their order, as Comm::split
// does. Every rank computes the same table from the same list.
struct Rows {
  int size = 0;                         // ranks of a row
  std::vector<std::vector<int>> ranks;  // by row, ascending
  std::vector<int> row;                 // by rank
  std::vector<int> place;               // by rank: its index in its row
  bool crosses = false;      // a row has ranks of several hosts, though some host has enough for a row
  bool consecutive = false;  // row r is ranks r * size, r * size + 1, ...
  std::string refusal;       // why there are no rows, and what to do; the rest is empty then
};

// `shard_size` 0: a row is a host.
Rows make_rows(const std::vector<HostOfRank>& hosts, int shard_size);

}  // namespace fsdp::detail
