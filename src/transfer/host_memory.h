// Pinned host memory of one model: shards and gradients that are not on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/numa.h"

namespace fsdp::detail {

// LibTorch's allocator rounds every block up to a power of two. So memory is taken from it in few blocks of
// such sizes, cut, and never given back before the model goes.
class HostMemory : public std::enable_shared_from_this<HostMemory> {
 public:
  // From `node`, where that is known.
  explicit HostMemory(std::optional<NumaNode> node = std::nullopt) : node_(std::move(node)) {}

  const std::optional<NumaNode>& node() const { return node_; }
  // [numel], not initialised. Its memory may be taken again when its storage is gone.
  at::Tensor take(int64_t numel, at::ScalarType type);
  // Of all blocks.
  int64_t bytes() const;

 private:
  struct Block {
    at::Tensor memory;  // [bytes]
    int64_t used = 0;
  };

  char* cut(int64_t bytes);

  const std::optional<NumaNode> node_;
  mutable std::mutex mutex_;
  std::vector<Block> blocks_;
  std::map<int64_t, std::vector<char*>> free_;  // by size
};

}  // namespace fsdp::detail
