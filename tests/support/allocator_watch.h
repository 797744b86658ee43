// What LibTorch's allocators and shared memory hold, as they themselves say.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace fsdp::testing {

// Follows this thread's allocations while it lives.
class AllocatorWatch {
 public:
  AllocatorWatch();

  int64_t live_bytes() const;  // since construction; freeing older memory makes it smaller
  int64_t peak_bytes() const;  // since construction or restart_peak()
  void restart_peak();

 private:
  class Reports;
  std::shared_ptr<Reports> reports_;
  c10::DebugInfoGuard guard_;
};

// What LibTorch's allocator of a device has handed out, now and at most.
class DeviceMemory {
 public:
  explicit DeviceMemory(c10::Device device)
      : device_(device), allocator_(c10::getDeviceAllocator(device.type())), before_(bytes().current) {}
  int64_t live_bytes() const { return bytes().current - before_; }
  int64_t peak_bytes() const { return bytes().peak - before_; }
  void restart_peak() { allocator_->resetPeakStats(device_.index()); }

 private:
  c10::CachingAllocator::Stat bytes() const {
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator_->getDeviceStats(device_.index()).allocated_bytes[all];
  }

  c10::Device device_;
  c10::DeviceAllocator* allocator_;
  int64_t before_;
};

// Bytes of memory files (memfd) mapped into this process.
int64_t shared_memory_bytes();

}  // namespace fsdp::testing
