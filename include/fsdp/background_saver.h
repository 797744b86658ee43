// Saving while training goes on.
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
  std::string last_error = {};       // of a save that failed; empty: none has
  double seconds_in_save = 0;        // that save() took, without waiting for the save before
  double seconds_behind_save = 0;    // that save() waited for the save before: saves are asked for too often
  double seconds_before_writes = 0;  // that optimizers waited until what they write was copied
  double seconds_saving = 0;         // that saves took in all, beside the training, with waits for others
  int64_t staging_bytes = 0;         // host memory that copies are kept in
};

// save() returns after it has noted what to save; a thread writes it while the next step computes. The
// optimizer's step waits until parameters and moments are copied to host memory, which the thread begins
// with. Moments that fsdp::AdamW made of sharded parameters need no copy before save() returns; others do:
// of other optimizers, of ignored parameters, and those that torch::load made. Every rank makes the same
// calls. Threads: one at a time. One save at a time: the next one waits for it. Saves into one folder follow
// each other in the order of the calls, whoever asks: other savers, or fsdp::save(), which waits for those
// before it.
class BackgroundSaver {
 public:
  // `staging_bytes`: how much is copied at most; what does not fit is written from where it is, and the
  // optimizer waits for that.
  explicit BackgroundSaver(std::string folder, const SaveOptions& options = {},
                           int64_t staging_bytes = INT64_MAX);
  // Waits for the save in flight; its error is logged.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // As fsdp::save(), but for when it is done. Throws the error of the save before, if it failed, and saves
  // nothing then; the next call does.
  void save(const RunState& run);
  // Waits for the save in flight. Returns the path of the last one ("" if there was none), or throws what
  // fsdp::save() would have thrown.
  std::string wait();
  // Whether this rank's part of a save goes on; other ranks may answer otherwise at the same moment.
  bool busy() const;
  BackgroundSaverStats stats() const;

  BackgroundSaver(std::string folder, const SaveOptions& options, int64_t staging_bytes,
                  detail::FileOps& files);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
