#include "app/launch/processors.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace fsdp::launch {

namespace {

constexpr int kMostProcessors = 1 << 14;

std::vector<int> usable() {
  cpu_set_t* set = CPU_ALLOC(kMostProcessors);
  const size_t size = CPU_ALLOC_SIZE(kMostProcessors);
  std::vector<int> found;
  if (::sched_getaffinity(0, size, set) == 0)
    for (int i = 0; i < kMostProcessors; ++i)
      if (CPU_ISSET_S(i, size, set)) found.push_back(i);
  CPU_FREE(set);
  return found;
}

// Of "0-3,8,10-11" those that are `among`.
std::vector<int> in_list(const std::string& text, const std::vector<int>& among) {
  std::vector<int> found;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    const int read = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    if (read < 1) continue;
    if (read == 1) last = first;
    for (const int one : among)
      if (one >= first && one <= last) found.push_back(one);
  }
  return found;
}

}  // namespace

ProcessorsByNode usable_processors_by_node(const std::string& sys) {
  const std::vector<int> all = usable();
  std::map<int, std::vector<int>> by_node;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(sys + "/devices/system/node", error)) {
    int node = 0;
    if (std::sscanf(entry.path().filename().c_str(), "node%d", &node) != 1) continue;
    std::ifstream file(entry.path() / "cpulist");
    std::string list;
    std::getline(file, list);
    if (std::vector<int> here = in_list(list, all); !here.empty()) by_node[node] = std::move(here);
  }
  ProcessorsByNode nodes;
  for (auto& [number, here] : by_node) nodes.push_back(std::move(here));
  return nodes.empty() ? ProcessorsByNode{all} : nodes;
}

std::vector<int> processors_of_rank(const ProcessorsByNode& nodes, NumaBinding binding, bool gpus, int index,
                                    int ranks) {
  const int count = static_cast<int>(nodes.size());
  if (binding == NumaBinding::automatic) binding = count > 1 && !gpus ? NumaBinding::node : NumaBinding::none;
  if (binding == NumaBinding::none || ranks < count) return {};
  const auto node_of = [&](int rank) { return rank * count / ranks; };
  const std::vector<int>& here = nodes[static_cast<size_t>(node_of(index))];
  if (binding == NumaBinding::node) return here;
  int place = 0, neighbours = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (node_of(rank) != node_of(index)) continue;
    if (rank < index) ++place;
    ++neighbours;
  }
  const int size = static_cast<int>(here.size());
  if (size < neighbours) return {};
  return {here.begin() + place * size / neighbours, here.begin() + (place + 1) * size / neighbours};
}

}  // namespace fsdp::launch
