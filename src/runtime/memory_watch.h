// MemoryWatch: the peak of the bytes a model holds, and samples of them during a step.
#pragma once

#include <fsdp/insight.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::detail {

class MemoryWatch {
 public:
  // The model holds `bytes` now.
  void note(int64_t bytes) {
    peak_ = std::max(peak_, bytes);
    step_peak_ = std::max(step_peak_, bytes);
  }
  // Restarts both peaks with `bytes`, which the model holds now.
  void reset(int64_t bytes) { peak_ = step_peak_ = bytes; }
  int64_t peak() const { return peak_; }
  int64_t step_peak() const { return step_peak_; }

  // Starts sampling with the next training cycle, or stops it.
  void record(bool on) {
    wanted_ = on;
    records_ = records_ && on;
  }
  bool records() const { return records_; }
  void sample(std::string moment, const MemoryStats& memory) {
    samples_.push_back({.moment = std::move(moment), .memory = memory});
  }

  void begin_training_cycle() {
    step_peak_ = 0;
    records_ = wanted_;
    samples_.clear();
  }
  // A cycle may have several backwards: it is complete with the last.
  void end_backward() {
    if (records_) complete_ = samples_;
  }
  // Samples of the last complete cycle.
  const std::vector<MemorySample>& timeline() const { return complete_; }

 private:
  int64_t peak_ = 0;
  int64_t step_peak_ = 0;
  bool wanted_ = false;
  bool records_ = false;
  std::vector<MemorySample> samples_, complete_;
};

}  // namespace fsdp::detail
