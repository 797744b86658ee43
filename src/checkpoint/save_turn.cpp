#include "checkpoint/save_turn.h"

#include <fsdp/error.h>

#include <mutex>
#include <utility>

#include "files/run_folder.h"
#include "launch/world_state.h"

namespace fsdp::detail {

namespace {

// Two runs in one folder would delete each other's checkpoints. The locked file, or the whole folder, may
// have been deleted since the previous save.
void lock_folder(SavingFolder& saving, RunFolder& folder, const std::string& path) {
  if (saving.lock && folder.lock_identity() == saving.lock_identity) return;
  auto lock = folder.lock();
  if (!lock)
    throw CheckpointError("another run saves into " + path +
                          ". Give every run a folder of its own, or end the other one first");
  saving.lock = std::move(lock);
  saving.lock_identity = folder.lock_identity();
}

}  // namespace

SaveTurn::SaveTurn(const World& world, FileOps& files, const std::string& path) {
  WorldState& state = world.state();
  RunFolder folder(files, path);
  const bool first = state.rank == 0;
  const std::string key = first ? folder.make() : path;
  const std::lock_guard guard(state.saving_mutex);
  SavingFolder& saving = state.saving[key];
  if (first) lock_folder(saving, folder, path);
  before_ = std::exchange(saving.last, ended_.get_future().share());
}

SaveTurn::~SaveTurn() {
  wait();
  ended_.set_value();
}

void SaveTurn::wait() const {
  if (before_.valid()) before_.wait();
}

}  // namespace fsdp::detail
