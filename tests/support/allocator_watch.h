// What LibTorch's CPU allocator and shared memory hold, as they themselves say.
#pragma once

#include <c10/core/Allocator.h>
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

// Bytes of memory files (memfd) mapped into this process.
int64_t shared_memory_bytes();

}  // namespace fsdp::testing
