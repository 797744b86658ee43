// The order of saves into one folder.
#pragma once

#include <fsdp/world.h>

#include <future>
#include <string>

#include "files/file_ops.h"

namespace fsdp::detail {

// Note [One save at a time]
// A save deletes leftovers of stopped saves in its folder, commits, and deletes old checkpoints: two saves at
// once would delete each other's files. A program may start two, with several BackgroundSavers or a saver and
// save(). So a save waits until all saves that were called before it, into the same folder, have ended.
//
// The order is decided on the training thread, where all ranks make the same calls in the same order. A save
// waits for earlier ones only, so no two wait for each other, on any number of ranks: the earliest save that
// has not ended waits only for its own ranks, and none of them is held up before it by a later save. A
// saver's own thread does the waiting, not the training thread; only save() has no other thread.
//
// Only rank 0 changes the run's folder, so its order counts. It knows a folder by its identity, whatever the
// path is. Other ranks may not see the folder yet: they know it by its path, and wait for their own earlier
// saves there only so that the time limit of a save begins when it does.
class SaveTurn {
 public:
  // On the training thread. Rank 0 makes the folder and locks it against other runs, until the world ends:
  // throws CheckpointError if another run saves there, or IoError.
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
