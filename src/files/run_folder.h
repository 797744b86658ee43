// A run's folder: its checkpoints, the latest of them, and the commit of a new one.
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
// is written beside it, so that a full disk is found before readers see any change. Then the folder is
// renamed to step-<number>, the run's folder is synced, the new `latest` is renamed into its place, and the
// run's folder is synced again. So a process or a machine that stops at any point leaves `latest` with the
// old checkpoint or the new one, and both are whole. An error before `latest` is in place withdraws the new
// checkpoint. Committed files are never written to: a step that is saved again gets another generation
// (step-00000100.1). A superseded checkpoint is renamed out of readers' sight, and that rename synced, before
// it is deleted. Folders with a dot that a stopped process left are deleted by the next save, which holds the
// lock.
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

  // The committed checkpoints, by step.
  std::vector<Entry> entries() const;
  // The checkpoint that `latest` names; if it names none that is whole, the one with the highest step.
  std::optional<Entry> latest() const;
  // True if a run has saved here.
  bool is_run() const;
  // The text of `latest`; empty if it does not exist.
  std::string named_latest() const;

  // Makes the folder if it does not exist. Returns its identity: the same for all paths to it.
  std::string make();
  // Makes the folder, and locks it. Null: another process saves here.
  std::shared_ptr<void> lock();
  // The identity of the file that lock() locks. It changes if somebody deletes that file.
  std::string lock_identity() const;
  // Makes a new folder for step `step`; `id` makes its name unique. Deletes leftovers of stopped saves. The
  // caller holds the lock.
  std::string begin(int64_t step, const std::string& id);
  // Returns the name of the new checkpoint. After an IoError there is none, and `latest` is as before. Only
  // if the last sync fails, the disk has one or the other.
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
  // Renames a new checkpoint out of readers' sight, and deletes it.
  void withdraw(const std::string& name);
  // Deletes folders and files that readers ignore.
  void remove_hidden(const std::vector<std::string>& names);

  FileOps& files_;
  std::string path_;
};

// Digits unique to one save.
std::string new_save_id();

// A checkpoint on disk.
struct OpenCheckpoint {
  std::string folder;
  std::string manifest_text;
};

// `path` is a checkpoint, or a run's folder, meaning its latest: an older one only if that is gone. Throws
// CheckpointError or IoError; the message says what `path` is instead.
OpenCheckpoint find_checkpoint(FileOps& files, const std::string& path);

}  // namespace fsdp::detail
