#include "bench/claims/memory_use.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace bench {

namespace {

Shares read_shares() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::optional<int64_t> anonymous, shared;
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "Pss_Anon:" && file >> kib) anonymous = kib * 1024;
    if (word == "Pss_Shmem:" && file >> kib) shared = kib * 1024;
  }
  TORCH_CHECK(anonymous && shared, "/proc/self/smaps_rollup has no Pss_Anon or no Pss_Shmem");
  return {*anonymous, *shared};
}

c10::CachingAllocator::Stat device_bytes(c10::Device device) {
  constexpr auto kAllPools = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[kAllPools];
}

}  // namespace

class MemoryUse::Reports final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live = 0, peak = 0;
};

MemoryUse::MemoryUse(c10::Device device)
    : device_(device),
      reports_(std::make_shared<Reports>()),
      guard_(c10::DebugInfoKind::PROFILER_STATE, reports_) {
  if (device_.is_cpu()) {
    ::mallopt(M_MMAP_THRESHOLD, 16 * 1024);
    before_ = read_shares();
  } else {
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
    device_before_ = device_bytes(device_).current;
  }
}

void MemoryUse::sample() {
  if (!device_.is_cpu()) return;
  const Shares now = read_shares();
  shared_peak_ = std::max(shared_peak_, now.shared - before_.shared);
  resident_peak_ = std::max(resident_peak_, now.anonymous + now.shared - before_.anonymous - before_.shared);
}

void MemoryUse::restart() {
  reports_->peak = reports_->live;
  shared_peak_ = resident_peak_ = 0;
  if (!device_.is_cpu()) c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

int64_t MemoryUse::allocated_peak() const {
  return device_.is_cpu() ? reports_->peak + shared_peak_ : device_bytes(device_).peak - device_before_;
}

int64_t MemoryUse::resident_peak() const { return device_.is_cpu() ? resident_peak_ : allocated_peak(); }

}  // namespace bench
