// BackgroundSaver: checkpoints that are written while training goes on.
#pragma once

#include <fsdp/checkpoint.h>

#include <cstdint>
#include <memory>
#include <string>

namespace fsdp {

namespace detail {
class BackgroundSave;
class FileOps;
}  // namespace detail

struct BackgroundSaverStats {
  int64_t saved = 0;
  int64_t failed = 0;
  std::string last_error = {};       // error message of the last save that failed; empty: none failed
  double seconds_in_save = 0;        // time spent inside save(), waits for the previous save excluded
  double seconds_behind_save = 0;    // time blocked on the previous save; large: saves are too frequent
  double seconds_before_writes = 0;  // time that optimizer steps waited for the copies to finish
  double seconds_saving = 0;         // total time of saves in the background, waits for other ranks included
  int64_t staging_bytes = 0;         // host memory that holds the copies
};

// save() returns once it has noted what to save; a thread then writes the files while the next step computes.
// The thread first copies parameters and moments to host memory, and the optimizer's next step waits for
// these copies. Sharded moments made by fsdp::AdamW are copied by the thread. Other moments are copied before
// save() returns: those of other optimizers, of ignored parameters, and those that torch::load made. Every
// rank makes the same calls. Threads: one at a time. One save runs at a time; the next one waits for it.
// Saves into one folder run in the order of the calls, from other savers and from fsdp::save() too, which
// waits for earlier ones.
class BackgroundSaver {
 public:
  // `staging_bytes` limits the host memory for copies. Tensors that do not fit are written from where they
  // are, and the optimizer waits until that is done.
  explicit BackgroundSaver(std::string folder, const SaveOptions& options = {},
                           int64_t staging_bytes = INT64_MAX);
  // Waits for the save in flight; its error is logged.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // As fsdp::save(), but returns before the data is written. If the previous save failed, throws its error
  // and saves nothing; the next call saves again. While it waits for the previous save it throws
  // RendezvousError if another rank waits for this one in a forward or backward.
  void save(const RunState& run);
  // Waits for the save in flight. Returns the path of the last save ("" if there was none), or throws what
  // fsdp::save() would have thrown.
  std::string wait();
  // True while this rank's part of a save is running. Other ranks may answer differently at the same time.
  bool busy() const;
  BackgroundSaverStats stats() const;

  BackgroundSaver(std::string folder, const SaveOptions& options, int64_t staging_bytes,
                  detail::FileOps& files);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
