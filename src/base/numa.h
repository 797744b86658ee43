// Memory near a device. Machines with several processors have memory on each, and the way to another's is
// slow.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace fsdp::detail {

struct NumaNode {
  int number = 0;
  std::vector<int> processors;  // that this process may use
};

// The node that the PCI device `address` ("0000:3b:00.0") is on. None where the machine has one node, does
// not say, or keeps this process off all processors of that node.
std::optional<NumaNode> numa_node_of(const std::string& address, const std::string& sys = "/sys");

// While it lives, memory that this thread is the first to touch comes from `node`, as long as that has some.
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
