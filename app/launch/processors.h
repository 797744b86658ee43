// Which processors a rank runs on.
#pragma once

#include <string>
#include <vector>

namespace fsdp::launch {

// As in torchrun's --numa-binding.
enum class NumaBinding {
  automatic,  // node, on a machine with several NUMA nodes and no GPU
  none,       // all processors
  node,       // the processors of one NUMA node, so that the rank's memory is near
  exclusive,  // a share of that node's processors, which no other rank has
};

// The processors that this process may use, by NUMA node. One list of all where the system does not tell.
using ProcessorsByNode = std::vector<std::vector<int>>;
ProcessorsByNode usable_processors_by_node(const std::string& sys = "/sys");

// Those of local rank `index` of `ranks`; empty: all. Neighbouring ranks share a node. A rank is not bound if
// there are fewer ranks than nodes, or `exclusive` would leave a rank without a processor.
std::vector<int> processors_of_rank(const ProcessorsByNode& nodes, NumaBinding binding, bool gpus, int index,
                                    int ranks);

}  // namespace fsdp::launch
