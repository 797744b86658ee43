// Tells the launcher which step this rank is in.
#pragma once

#include <cstdint>

namespace fsdp::train {

// The file that FSDP_STEP_FILE names, which `fsdp run` and `fsdp train` set for each rank. Without the
// variable, or if the file cannot be written, nothing is told.
class StepFile {
 public:
  StepFile();
  ~StepFile();
  StepFile(const StepFile&) = delete;
  StepFile& operator=(const StepFile&) = delete;

  // The rank begins step `step`, counted from 1.
  void write(int64_t step) const;

 private:
  int file_ = -1;
};

}  // namespace fsdp::train
