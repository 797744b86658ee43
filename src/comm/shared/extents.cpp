#include "comm/shared/extents.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace fsdp::detail {

namespace {

constexpr size_t kCounters = 4096;  // ranges of one allocation that can be in use at once
constexpr size_t kCounterBytes = kCounters * sizeof(std::atomic<uint32_t>);
constexpr size_t kPage = 4096;

size_t stride_of(size_t bytes) { return (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage; }

}  // namespace

Allocation::Allocation(SegmentPtr segment, MemoryUse use, size_t bytes, int rank, int size, uint32_t number)
    : segment_(std::move(segment)),
      use_(use),
      bytes_(bytes),
      stride_(stride_of(bytes)),
      rank_(rank),
      size_(size),
      number_(number) {}

size_t Allocation::segment_bytes(MemoryUse use, size_t bytes, int size) {
  return kCounterBytes + stride_of(bytes) * static_cast<size_t>(use == MemoryUse::gather ? 1 : size);
}

char* Allocation::block(int rank) const {
  const auto index = static_cast<size_t>(use_ == MemoryUse::gather ? 0 : rank);
  return segment_->data() + kCounterBytes + index * stride_;
}

Extent& Allocation::begin_use(size_t offset, size_t bytes, std::vector<Completion>& before) {
  for (Extent* other : overlapping(offset, bytes)) before.push_back(other->completion());
  Extent& extent = this->extent(offset, bytes, before);
  extent.expected += static_cast<uint32_t>(size_);
  extent.held = true;
  extent.last_use = ++uses_;
  return extent;
}

Extent* Allocation::find(size_t offset, size_t bytes) {
  for (auto& extent : extents_)
    if (extent->offset == offset && extent->bytes == bytes) return extent.get();
  return nullptr;
}

std::vector<Extent*> Allocation::overlapping(size_t offset, size_t bytes) {
  std::vector<Extent*> found;
  for (auto& extent : extents_)
    if (extent->offset < offset + bytes && offset < extent->offset + extent->bytes)
      found.push_back(extent.get());
  return found;
}

// If all counters are taken, the range unused for longest gives up its counter. The choice depends only on
// the order of collectives, so every rank makes the same; a rank that still holds that range gets an error.
Extent& Allocation::extent(size_t offset, size_t bytes, std::vector<Completion>& before) {
  if (Extent* known = find(offset, bytes)) return *known;
  if (extents_.size() < kCounters) {
    auto* counters = reinterpret_cast<std::atomic<uint32_t>*>(segment_->data());
    extents_.push_back(std::make_unique<Extent>(
        Extent{.offset = offset, .bytes = bytes, .finished = counters + extents_.size()}));
    return *extents_.back();
  }
  auto oldest = std::min_element(extents_.begin(), extents_.end(),
                                 [](const auto& a, const auto& b) { return a->last_use < b->last_use; });
  TORCH_CHECK(!(*oldest)->held, "fsdp: more than ", kCounters,
              " ranges of one allocation are in use at once; release() some, or allocate more blocks");
  before.push_back((*oldest)->completion());
  (*oldest)->offset = offset;
  (*oldest)->bytes = bytes;
  return **oldest;
}

void Allocation::release_all() {
  if (use_ != MemoryUse::gather) return;
  for (auto& extent : extents_) {
    if (!extent->held) continue;
    extent->held = false;
    extent->finish();
  }
}

void AllocationTable::add(const AllocationPtr& allocation) {
  const std::lock_guard lock(mutex_);
  by_address_[allocation->own()] = allocation;
}

void AllocationTable::remove(const void* own) {
  AllocationPtr last;  // unmapped after the lock is released
  const std::lock_guard lock(mutex_);
  const auto it = by_address_.find(static_cast<const char*>(own));
  if (it == by_address_.end()) return;
  last = std::move(it->second);
  by_address_.erase(it);
  if (owner_.is_this()) last->release_all();
}

AllocationPtr AllocationTable::find(const void* data, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const char* address = static_cast<const char*>(data);
  const auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return nullptr;
  const AllocationPtr& candidate = std::prev(after)->second;
  return address + bytes <= candidate->own() + candidate->bytes() ? candidate : nullptr;
}

void AllocationTable::release_all() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, allocation] : by_address_) allocation->release_all();
}

}  // namespace fsdp::detail
