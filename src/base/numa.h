// Memory near a device. Machines with several processors have memory on each, and access to another
// processor's memory is slow.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace fsdp::detail {

struct NumaNode {
  int number = 0;
  std::vector<int> processors;  // those that this process may use
};

// The NUMA node of the PCI device `address` ("0000:3b:00.0"). None if the machine has one node or does not
// say, or if this process may use none of that node's processors.
std::optional<NumaNode> numa_node_of(const std::string& address, const std::string& sys = "/sys");

// While it lives, pages that this thread touches first come from `node`, as long as it has free memory.
class MemoryFrom {
 public:
  explicit MemoryFrom(const std::optional<NumaNode>& node);
  ~MemoryFrom();
  MemoryFrom(const MemoryFrom&) = delete;
  MemoryFrom& operator=(const MemoryFrom&) = delete;

 private:
  bool set_ = false;
  int mode_before_ = 0;
  std::vector<unsigned long> nodes_before_;
};

}  // namespace fsdp::detail
