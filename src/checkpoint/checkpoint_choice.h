// Chooses the checkpoint of a run's folder to load, and the next one if that cannot be read.
#pragma once

#include <fsdp/checkpoint.h>
#include <fsdp/world.h>

#include <exception>
#include <set>
#include <string>
#include <vector>

#include "files/file_ops.h"

namespace fsdp::detail {

// Note [Another checkpoint]
// load() of a run's folder loads its latest. A run that saves there meanwhile, and keeps only few, deletes it
// while it is read; then the new latest is loaded instead. A latest that stays and cannot be read is damaged:
// the error names an older one that has all its files, and LoadOptions::fall_back loads that one. Rank 0
// decides, since ranks may see the folder change at different times.
class CheckpointChoice {
 public:
  CheckpointChoice(FileOps& files, const World& world, std::string path, const LoadOptions& options);

  // The path to open: the given one, or an older checkpoint.
  const std::string& path() const { return target_; }
  // Rank 0 has opened a checkpoint with this identity.
  void opened(const std::string& identity) { tried_.insert(identity); }
  // Call it after all ranks threw `error`, an IoError or CheckpointError, while they read path(). Returns if
  // there is another one to try; else throws it, with a hint. Collective, on the training thread.
  void next(const std::exception_ptr& error);
  // Messages: checkpoints that fall_back skipped.
  const std::vector<std::string>& damaged() const { return damaged_; }

 private:
  // On rank 0 only:
  bool latest_is_new();
  std::string older() const;

  FileOps& files_;
  World world_;
  std::string given_, target_;
  const LoadOptions& options_;
  std::set<std::string> tried_;   // identities
  std::set<std::string> passed_;  // checkpoints that fall_back has tried
  std::exception_ptr first_;      // the error of the latest
  std::vector<std::string> damaged_;
  int again_ = 0;
};

}  // namespace fsdp::detail
