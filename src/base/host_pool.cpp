#include "base/host_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

namespace fsdp::detail {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr size_t kPage = 4096;
constexpr size_t kSmallest = 64 << 10;  // malloc keeps smaller blocks itself
constexpr size_t kHugePage = 2 << 20;
constexpr uint64_t kWindow = 1 << 15;

// Steps of an eighth of a power of two: few enough sizes that blocks can be reused.
size_t size_class(size_t bytes) {
  const size_t step = std::max(std::bit_floor(bytes) / 8, kPage);
  return (bytes + step - 1) / step * step;
}

void* map_pages(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

// Null if the system has no memory.
void* map_block(size_t bytes) {
  if (bytes < kHugePage) return map_pages(bytes);
  auto* room = static_cast<char*>(map_pages(bytes + kHugePage));
  if (room == nullptr) return nullptr;
  const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(room) % kHugePage) % kHugePage;
  if (head > 0) munmap(room, head);
  munmap(room + head + bytes, kHugePage - head);
  madvise(room + head, bytes, MADV_HUGEPAGE);
  return room + head;
}

class HostPool final : public at::Allocator {
 public:
  // Lives as long as the process: tensors may be dropped at its very end.
  static HostPool& instance() {
    static auto* const pool = new HostPool;
    return *pool;
  }

  at::DataPtr allocate(size_t bytes) override {
    if (bytes < kSmallest) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    void* data = take(size_class(bytes));
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &give_back, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    while (!kept_.empty()) drop_oldest();
    stats_.peak = window_peak_ = stats_.in_use;
  }

  HostPoolStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  struct Kept {
    void* data = nullptr;
    uint64_t since = 0;
  };

  static void give_back(void* data) {
    c10::profiledCPUMemoryReporter().Delete(data);
    if (!instance().keep(data)) c10::free_cpu(data);
  }

  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto fits = kept_.find(bytes);
    void* data = fits != kept_.end() ? fits->second.data : map_new(bytes);
    if (fits != kept_.end()) {
      stats_.kept -= bytes;
      kept_.erase(fits);
    }
    stats_.in_use += bytes;
    note_peak();
    return data;
  }

  void* map_new(size_t bytes) {
    keep_at_most(std::max(stats_.peak, stats_.in_use + bytes), bytes);
    void* data = map_block(bytes);
    while (data == nullptr && !kept_.empty()) {
      drop_oldest();
      data = map_block(bytes);
    }
    TORCH_CHECK(data != nullptr, "fsdp: no memory for a tensor of ", bytes, " bytes; ", stats_.in_use,
                " are in use on this rank. Construct a large model inside fsdp::on_meta(); for steps, see "
                "docs/troubleshooting.md");
    ++stats_.mapped;
    sizes_[data] = bytes;
    return data;
  }

  // Keeps blocks in use and kept, with `more` bytes to come, at 1.5 times `peak` at most.
  void keep_at_most(size_t peak, size_t more) {
    while (!kept_.empty() && stats_.in_use + stats_.kept + more > peak + peak / 2) drop_oldest();
  }

  // A window is this many allocations: several steps of a large model. "Lately" is this one and the last.
  void note_peak() {
    window_peak_ = std::max(window_peak_, stats_.in_use);
    stats_.peak = std::max(stats_.peak, window_peak_);
    if (++allocations_ % kWindow != 0) return;
    stats_.peak = window_peak_;
    window_peak_ = stats_.in_use;
    keep_at_most(stats_.peak, 0);
  }

  // Returns false if the block is not the pool's.
  bool keep(void* data) {
    const std::lock_guard lock(mutex_);
    const auto known = sizes_.find(data);
    if (known == sizes_.end()) return false;
    kept_.emplace(known->second, Kept{data, ++clock_});
    stats_.in_use -= known->second;
    stats_.kept += known->second;
    return true;
  }

  void drop_oldest() {
    const auto oldest = std::min_element(kept_.begin(), kept_.end(), [](const auto& a, const auto& b) {
      return a.second.since < b.second.since;
    });
    munmap(oldest->second.data, oldest->first);
    stats_.kept -= oldest->first;
    sizes_.erase(oldest->second.data);
    kept_.erase(oldest);
  }

  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;  // of all blocks
  std::multimap<size_t, Kept> kept_;
  uint64_t clock_ = 0, allocations_ = 0;
  size_t window_peak_ = 0;  // of the current window
  HostPoolStats stats_;
};

}  // namespace

void use_host_pool() {
  if (!kSanitized && c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator())
    c10::SetCPUAllocator(&HostPool::instance());
}

void trim_host_pool() { HostPool::instance().trim(); }

HostPoolStats host_pool_stats() { return HostPool::instance().stats(); }

}  // namespace fsdp::detail
