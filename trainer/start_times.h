// What the time from the start of this process to the first step went into.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::train {

class StartTimes {
 public:
  // The first part begins when the process did: loading its libraries.
  StartTimes() { end("libraries"); }

  // The part that ends now began when the one before ended.
  void end(const std::string& part);
  // In order, without those under a millisecond.
  std::vector<std::pair<std::string, double>> seconds() const;
  // "0.52 s: libraries 0.31, ranks 0.04, model 0.17".
  std::string text() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<std::pair<std::string, Clock::duration>> parts_;
  Clock::time_point last_ = {};
};

}  // namespace fsdp::train
