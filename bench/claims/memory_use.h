// How much memory a rank has in use, and the most it had.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace bench {

// Bytes of this process, shared pages divided among those that map them.
struct Shares {
  int64_t anonymous = 0, shared = 0;
};

// Measures this rank from its construction on, in two ways. CPU ranks need InitOptions::keep_host_memory =
// false: memory that is kept for later is in use for the kernel. The constructor makes malloc() return freed
// blocks of 16 KiB and more to the system at once, for the same reason.
class MemoryUse {
 public:
  explicit MemoryUse(c10::Device device);

  // Reads what the kernel counts. On CUDA nothing needs to be sampled.
  void sample();
  // Both peaks begin again.
  void restart();

  // The most bytes that LibTorch's allocator has handed out to this thread, plus Pss_Shmem: this rank's part
  // of the memory that ranks share. On CUDA: the peak of the caching allocator.
  int64_t allocated_peak() const;
  // The most memory in any sample, Pss_Anon + Pss_Shmem of /proc/self/smaps_rollup. The kernel divides a page
  // among the processes that map it. On CUDA: as allocated_peak().
  int64_t resident_peak() const;

 private:
  class Reports;

  c10::Device device_;
  Shares before_;
  int64_t shared_peak_ = 0, resident_peak_ = 0;
  int64_t device_before_ = 0;
  std::shared_ptr<Reports> reports_;
  c10::DebugInfoGuard guard_;
};

}  // namespace bench
