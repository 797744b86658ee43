// A run's folder: its checkpoints, which of them is the latest, and how a new one gets there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "files/file_ops.h"
#include "files/manifest.h"

namespace fsdp::detail {

// Note [Committing a checkpoint]
// A checkpoint is written into a folder whose name begins with a dot, where no reader looks. Every file in it
// is synced, the manifest last, then the folder itself. The next `latest`, a file with the checkpoint's name,
// is written beside it, so that a full disk is found while there is nothing to see. Then the folder is
// renamed to step-<number>, the run's folder is synced, the new `latest` is renamed into its place, and the
// run's folder is synced again. So a process or a machine that stops at any point leaves `latest` with the
// old checkpoint or the new one, and both are whole. An error before `latest` is in place takes the new
// checkpoint back. Nothing that was committed is ever written to: a step that is saved again gets another
// generation (step-00000100.1). What is superseded is renamed out of readers' sight, and that rename synced,
// before it is deleted. Folders with a dot that a stopped process left are deleted by the next save, which
// holds the lock.
class RunFolder {
 public:
  struct Entry {
    std::string name;
    int64_t step = 0;
    int generation = 0;

    auto operator<=>(const Entry& other) const {
      return std::pair(step, generation) <=> std::pair(other.step, other.generation);
    }
    bool operator==(const Entry& other) const = default;
  };

  RunFolder(FileOps& files, std::string path) : files_(files), path_(std::move(path)) {}

  // Those that were committed, by step.
  std::vector<Entry> entries() const;
  // The one `latest` names; where it names none that is whole, the one with the highest step.
  std::optional<Entry> latest() const;
  // Whether a run has saved here.
  bool is_run() const;
  // What `latest` says; empty where it is not there.
  std::string named_latest() const;

  // Makes the folder where it does not exist. Returns its identity: the same for all paths to it.
  std::string make();
  // Null: another process saves here. Makes the folder.
  std::shared_ptr<void> lock();
  // The identity of the file that lock() locks. It changes when somebody deletes that file.
  std::string lock_identity() const;
  // A new folder to write step `step` into; `id` makes its name one of its own. Deletes what stopped saves
  // left. The caller holds the lock.
  std::string begin(int64_t step, const std::string& id);
  // Returns the name of the new checkpoint. After an IoError there is none, and `latest` is as before; except
  // where the last sync fails: then the disk has one or the other.
  std::string commit(const std::string& begun, int64_t step, const std::string& manifest);
  // The checkpoint up to `newest` with the lowest (highest) number as value `value`, of equal ones the
  // newest; empty: none has such a number.
  std::string best(const std::string& newest, const std::string& value, bool highest) const;
  // Deletes checkpoints with a lower step than `newest`, and its own earlier generations, except the
  // `keep_last` - 1 before it, those whose step is a multiple of `keep_every`, `best` and `latest`. 0: all,
  // none.
  void retire(const std::string& newest, int64_t keep_last, int64_t keep_every, const std::string& best = "");

 private:
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  std::vector<Entry> entries_up_to(const Entry& newest) const;
  // Takes a new checkpoint out of readers' sight, and deletes it.
  void withdraw(const std::string& name);
  // Deletes folders and files that readers do not look at.
  void remove_hidden(const std::vector<std::string>& names);

  FileOps& files_;
  std::string path_;
};

// Digits that no other save has.
std::string new_save_id();

// A checkpoint on disk.
struct OpenCheckpoint {
  std::string folder;
  std::string manifest_text;
};

// `path` is a checkpoint, or a run's folder, whose latest is taken: another one only where that is gone.
// Throws CheckpointError or IoError, in words that say what `path` is instead.
OpenCheckpoint find_checkpoint(FileOps& files, const std::string& path);

}  // namespace fsdp::detail
