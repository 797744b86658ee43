// Saving and loading with a file layer of the caller's, for tests.
#pragma once

#include <fsdp/checkpoint.h>

#include "files/file_ops.h"

namespace fsdp::detail {

std::string save_run(FileOps& files, const std::string& folder, const RunState& run,
                     const SaveOptions& options);
LoadReport load_run(FileOps& files, const std::string& folder, RunState& run, const LoadOptions& options);

}  // namespace fsdp::detail
