// The order of saves into one folder.
#pragma once

#include <fsdp/world.h>

#include <future>
#include <string>

#include "files/file_ops.h"

namespace fsdp::detail {

// Note [One save at a time]
// A save deletes what stopped saves left in its folder, commits, and deletes old checkpoints: two saves at
// once would delete each other's files. A program may well ask for two, with several BackgroundSavers or a
// saver and save(). So a save waits until those asked for before it, into the same folder, have ended.
//
// Its place in that order is taken on the training thread, where all ranks make the same calls in the same
// order. A save waits for earlier ones only, so no two wait for each other, on any number of ranks: the
// earliest save that has not ended waits for nobody but its own ranks, and none of them is held up before it
// by a later save. A saver's thread waits, not the training thread; save() has no other.
//
// Rank 0 alone changes the run's folder, so its order is what counts. It knows a folder by its identity,
// whatever path led to it. Other ranks may not see the folder yet: they know it by its path, and wait for
// their own earlier saves there only so that the time limit of a save begins when it does.
class SaveTurn {
 public:
  // On the training thread. Rank 0 makes the folder and locks it against other runs, until the world ends:
  // throws CheckpointError where another run saves there, or IoError.
  SaveTurn(const World& world, FileOps& files, const std::string& path);
  // Ends this save, once those before it have ended.
  ~SaveTurn();
  SaveTurn(const SaveTurn&) = delete;
  SaveTurn& operator=(const SaveTurn&) = delete;

  // Returns when all earlier saves into the folder have ended. On any thread.
  void wait() const;

 private:
  std::shared_future<void> before_;
  std::promise<void> ended_;
};

}  // namespace fsdp::detail
