// How a program shards its model.
#pragma once

#include <fsdp/fsdp.h>

#include "fuzz/program.h"

namespace fsdp::fuzz {

// `program` must outlive them.
ShardOptions options_of(const Program& program, const CommOptions& comm);

}  // namespace fsdp::fuzz
