#include "transfer/host_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>

namespace fsdp::detail {

namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kLeastBlock = int64_t{1} << 20;
constexpr int64_t kLargestStep = int64_t{1} << 28;  // blocks double up to this size

int64_t power_of_two(int64_t bytes) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

}  // namespace

at::Tensor HostMemory::take(int64_t numel, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  if (numel == 0) return at::empty({0}, options);
  const auto wanted = numel * static_cast<int64_t>(c10::elementSize(type));
  const int64_t bytes = (wanted + kAlignment - 1) / kAlignment * kAlignment;
  char* memory = cut(bytes);
  const auto give_back = [pool = shared_from_this(), bytes, memory](void*) {
    const std::lock_guard lock(pool->mutex_);
    pool->free_[bytes].push_back(memory);
  };
  return at::from_blob(memory, {numel}, give_back, options);
}

char* HostMemory::cut(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (auto& pieces = free_[bytes]; !pieces.empty()) {
    char* piece = pieces.back();
    pieces.pop_back();
    return piece;
  }
  auto block = std::find_if(blocks_.begin(), blocks_.end(),
                            [&](const Block& one) { return one.memory.numel() - one.used >= bytes; });
  if (block == blocks_.end()) {
    const int64_t next = blocks_.empty() ? kLeastBlock : blocks_.back().memory.numel() * 2;
    const int64_t size = std::max(power_of_two(bytes), std::min(next, kLargestStep));
    const MemoryFrom near(node_);
    blocks_.push_back(
        {.memory = at::empty({size}, at::TensorOptions().dtype(at::kByte).pinned_memory(true))});
    block = blocks_.end() - 1;
  }
  char* piece = static_cast<char*>(block->memory.mutable_data_ptr()) + block->used;
  block->used += bytes;
  return piece;
}

int64_t HostMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.memory.numel();
  return bytes;
}

}  // namespace fsdp::detail
