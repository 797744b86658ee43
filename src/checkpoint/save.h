// Saving and loading with a file layer of the caller's, for background saves and tests.
#pragma once

#include <fsdp/checkpoint.h>

#include <memory>

#include "checkpoint/meeting.h"
#include "checkpoint/save_turn.h"
#include "checkpoint/snapshot.h"
#include "files/file_ops.h"

namespace fsdp::detail {

std::string save_run(FileOps& files, const std::string& folder, const RunState& run,
                     const SaveOptions& options);
LoadReport load_run(FileOps& files, const std::string& folder, RunState& run, const LoadOptions& options);

// The beginning of every save. Throws c10::Error if the run cannot be saved now. Collective.
void before_save(const RunState& run, const SaveOptions& options);

// A save that has begun on the training thread: this rank's turn, and the data it has to write.
struct BegunSave {
  std::unique_ptr<SaveTurn> turn;  // null after an error
  Snapshot snapshot;
  std::string error;  // this rank's: see error_of()
};
BegunSave begin_save(FileOps& files, const std::string& folder, const RunState& run,
                     const SaveOptions& options, bool in_background);

// Writes the begun saves of all ranks and makes the result the latest, when it is its turn. Returns its path.
// On any thread. If a rank has an error, all ranks throw it.
std::string write_save(FileOps& files, const std::string& folder, Meeting& meeting, const BegunSave& save,
                       const SaveOptions& options, const Written& written = {});

}  // namespace fsdp::detail
