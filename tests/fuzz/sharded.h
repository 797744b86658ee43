// A random program on a sharded model, compared with the plain loop after every action.
#pragma once

#include <fsdp/fsdp.h>

#include "fuzz/oracle.h"

namespace fsdp::fuzz {

// Throws std::runtime_error, which names the action, where anything differs by more than rounding in fp64.
void run_sharded(const Program& program, const World& world, const std::vector<Record>& wanted,
                 const CommOptions& comm);

}  // namespace fsdp::fuzz
