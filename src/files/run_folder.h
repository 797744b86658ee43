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
// is synced, the manifest last, then the folder itself; then it is renamed to step-<number>, and the run's
// folder is synced. `latest`, a file with that name, is replaced after that in the same way, by a rename. So
// a process or a machine that stops at any point leaves `latest` with the old checkpoint or the new one, and
// both are whole. Nothing that was committed is ever written to: a step that is saved again gets another
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
  // What `latest` says; empty where it is not there.
  std::string named_latest() const;

  // Null: another process saves here.
  std::shared_ptr<void> lock();
  // A new folder to write step `step` into; `id` makes its name one of its own. Deletes what stopped saves
  // left. The caller holds the lock.
  std::string begin(int64_t step, const std::string& id);
  // The name of the new checkpoint.
  std::string commit(const std::string& begun, int64_t step, const std::string& manifest);
  // Deletes checkpoints with a lower step than `newest`, and its own earlier generations, except the
  // `keep_last` - 1 before it, those whose step is a multiple of `keep_every`, and `latest`. 0: all, none.
  void retire(const std::string& newest, int64_t keep_last, int64_t keep_every);

 private:
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  void replace_latest(const std::string& name);
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
