#include "layout/rows.h"

#include <algorithm>

namespace fsdp::detail {

namespace {

struct Host {
  HostOfRank host;
  std::vector<int> ranks;
};

// Hosts in the order of their first ranks.
std::vector<Host> group_by_host(const std::vector<HostOfRank>& hosts) {
  std::vector<Host> found;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    const HostOfRank& host = hosts[static_cast<size_t>(rank)];
    auto known =
        std::find_if(found.begin(), found.end(), [&](const Host& h) { return h.host.id == host.id; });
    if (known == found.end()) known = found.insert(found.end(), {host, {}});
    known->ranks.push_back(rank);
  }
  return found;
}

std::string refuse_unequal(const std::vector<Host>& hosts, size_t ranks) {
  constexpr size_t kShown = 8;
  std::string found;
  for (size_t i = 0; i < std::min(hosts.size(), kShown); ++i)
    found += (i == 0 ? "" : ", ") + std::to_string(hosts[i].ranks.size()) + " on " + hosts[i].host.name;
  if (hosts.size() > kShown) found += ", ...";
  return "hosts have different numbers of ranks (" + found +
         "), and without shard_size a row is the ranks of a host. Start as many ranks on every host, or set "
         "shard_size to a divisor of " +
         std::to_string(ranks);
}

std::string refuse_size(size_t ranks, int size) {
  return std::to_string(ranks) + " ranks cannot be rows of " + std::to_string(size) +
         " (shard_size); set shard_size to a divisor of the number of ranks";
}

}  // namespace

Rows make_rows(const std::vector<HostOfRank>& hosts, int shard_size) {
  const std::vector<Host> by_host = group_by_host(hosts);
  const auto ranks_of = [](const Host& host) { return static_cast<int>(host.ranks.size()); };
  const auto refused = [](std::string words) {
    Rows none;
    none.refusal = std::move(words);
    return none;
  };
  const int ranks = static_cast<int>(hosts.size());
  Rows rows;
  rows.size = shard_size == 0 ? ranks_of(by_host.front()) : shard_size;
  if (shard_size == 0 && std::any_of(by_host.begin(), by_host.end(),
                                     [&](const Host& host) { return ranks_of(host) != rows.size; }))
    return refused(refuse_unequal(by_host, hosts.size()));
  if (rows.size < 0 || ranks % rows.size != 0) return refused(refuse_size(hosts.size(), rows.size));

  std::vector<int> sorted;
  for (const Host& host : by_host) sorted.insert(sorted.end(), host.ranks.begin(), host.ranks.end());
  rows.row.resize(hosts.size());
  rows.place.resize(hosts.size());
  rows.consecutive = true;
  bool crosses = false;
  for (int first = 0; first < ranks; first += rows.size) {
    std::vector<int> row(sorted.begin() + first, sorted.begin() + first + rows.size);
    std::sort(row.begin(), row.end());
    for (int i = 0; i < rows.size; ++i) {
      const auto rank = static_cast<size_t>(row[static_cast<size_t>(i)]);
      rows.row[rank] = first / rows.size;
      rows.place[rank] = i;
      rows.consecutive = rows.consecutive && static_cast<int>(rank) == first + i;
      crosses = crosses || hosts[rank].id != hosts[static_cast<size_t>(row.front())].id;
    }
    rows.ranks.push_back(std::move(row));
  }
  rows.crosses = crosses && std::any_of(by_host.begin(), by_host.end(),
                                        [&](const Host& host) { return ranks_of(host) >= rows.size; });
  return rows;
}

}  // namespace fsdp::detail
