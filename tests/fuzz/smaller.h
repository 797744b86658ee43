// A program that fails, made shorter.
#pragma once

#include <functional>

#include "fuzz/program.h"

namespace fsdp::fuzz {

// Leaves out actions that are not needed to fail, for a minute.
Program smaller(Program program, const std::function<bool(const Program&)>& fails);

}  // namespace fsdp::fuzz
