// Pinned host memory of one model, for shards and gradients that are not on the device.
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

// LibTorch's allocator rounds every block up to a power of two. So this takes a few blocks of such sizes,
// cuts them, and gives none back before the model ends.
class HostMemory : public std::enable_shared_from_this<HostMemory> {
 public:
  // Takes memory of `node`, if it is known.
  explicit HostMemory(std::optional<NumaNode> node = std::nullopt) : node_(std::move(node)) {}

  const std::optional<NumaNode>& node() const { return node_; }
  // [numel], not initialised. Its memory may be reused once its storage is gone.
  at::Tensor take(int64_t numel, at::ScalarType type);
  // Bytes of all blocks.
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
