// The cause of a failed run.
#pragma once

#include <exception>
#include <string>

namespace fsdp::train {

struct Failure {
  std::string text = {};  // without a backtrace
  int exit_code = 0;      // of the process: app/exit_codes.h
  int culprit = -1;       // the rank at fault; -1: not known
};

Failure describe_failure(const std::exception& error);

}  // namespace fsdp::train
