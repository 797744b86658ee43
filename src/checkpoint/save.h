// Saving and loading with a file layer of the caller's, for tests.
#pragma once

#include <fsdp/checkpoint.h>

#include "checkpoint/meeting.h"
#include "checkpoint/snapshot.h"
#include "files/file_ops.h"

namespace fsdp::detail {

std::string save_run(FileOps& files, const std::string& folder, const RunState& run,
                     const SaveOptions& options);
LoadReport load_run(FileOps& files, const std::string& folder, RunState& run, const LoadOptions& options);

// Throws c10::Error between which calls a run cannot be saved.
void check_can_save(const RunState& run);

// Writes what all ranks have taken and makes it the latest. Returns its path. On any thread. `error` is what
// went wrong before, on this rank: then all ranks throw it.
std::string write_snapshot(FileOps& files, const std::string& folder, Meeting& meeting,
                           const Snapshot& snapshot, const SaveOptions& options, const std::string& error,
                           const Written& written = {});

}  // namespace fsdp::detail
