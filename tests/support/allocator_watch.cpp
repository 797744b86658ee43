#include "support/allocator_watch.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace fsdp::testing {

class AllocatorWatch::Reports final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live = 0;
  int64_t peak = 0;
};

AllocatorWatch::AllocatorWatch()
    : reports_(std::make_shared<Reports>()), guard_(c10::DebugInfoKind::PROFILER_STATE, reports_) {}

int64_t AllocatorWatch::live_bytes() const { return reports_->live; }
int64_t AllocatorWatch::peak_bytes() const { return reports_->peak; }
void AllocatorWatch::restart_peak() { reports_->peak = reports_->live; }

int64_t shared_memory_bytes() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int64_t bytes = 0;
  while (std::getline(maps, line)) {
    if (line.find("/memfd:") == std::string::npos) continue;
    size_t dash = 0;
    const uint64_t start = std::stoull(line, &dash, 16);
    bytes += static_cast<int64_t>(std::stoull(line.substr(dash + 1), nullptr, 16) - start);
  }
  return bytes;
}

}  // namespace fsdp::testing
