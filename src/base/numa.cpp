#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace fsdp::detail {

namespace {

constexpr unsigned long kMostNodes = 1024;  // the kernel's own limit
constexpr unsigned long kBits = 8 * sizeof(unsigned long);

// "0-3,8" -> 0 1 2 3 8
std::vector<int> parse_list(std::istream& in) {
  std::vector<int> all;
  for (int first = 0; in >> first;) {
    int last = first;
    if (in.peek() == '-') in.ignore() >> last;
    for (int i = first; i <= last; ++i) all.push_back(i);
    if (in.peek() == ',') in.ignore();
  }
  return all;
}

bool allowed(int processor) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  return ::sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_ISSET(processor, &mask);
}

int count_nodes(const std::filesystem::path& folder) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (std::filesystem::exists(entry.path() / "cpulist", error)) ++count;
  return count;
}

}  // namespace

std::optional<NumaNode> numa_node_of(const std::string& address, const std::string& sys) {
  const std::filesystem::path nodes = std::filesystem::path(sys) / "devices/system/node";
  NumaNode node;
  std::ifstream number(std::filesystem::path(sys) / "bus/pci/devices" / address / "numa_node");
  if (!(number >> node.number) || node.number < 0 || count_nodes(nodes) < 2) return std::nullopt;
  std::ifstream list(nodes / ("node" + std::to_string(node.number)) / "cpulist");
  for (const int processor : parse_list(list))
    if (allowed(processor)) node.processors.push_back(processor);
  if (node.processors.empty()) return std::nullopt;
  return node;
}

MemoryFrom::MemoryFrom(const std::optional<NumaNode>& node) {
  if (!node || static_cast<unsigned long>(node->number) >= kMostNodes) return;
  nodes_before_.resize(kMostNodes / kBits);
  if (::syscall(SYS_get_mempolicy, &mode_before_, nodes_before_.data(), kMostNodes, nullptr, 0) != 0) return;
  std::vector<unsigned long> wanted(kMostNodes / kBits);
  const auto bit = static_cast<unsigned long>(node->number);
  wanted[bit / kBits] = 1UL << (bit % kBits);
  // Containers may forbid it: then the memory comes from any node.
  set_ = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, wanted.data(), kMostNodes) == 0;
}

MemoryFrom::~MemoryFrom() {
  if (set_) ::syscall(SYS_set_mempolicy, mode_before_, nodes_before_.data(), kMostNodes);
}

}  // namespace fsdp::detail
