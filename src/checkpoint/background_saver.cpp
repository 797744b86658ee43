#include <fsdp/background_saver.h>

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/error.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/errors.h"
#include "checkpoint/members.h"
#include "checkpoint/save.h"
#include "comm/heartbeat/heartbeat.h"
#include "launch/in_call.h"
#include "launch/world_state.h"
#include "runtime/policy.h"
#include "watch/quiet.h"

namespace fsdp {

namespace detail {

// A stream of the thread's own, behind the work that the training had issued when the save began.
class BesideTraining {
 public:
  explicit BesideTraining(c10::Device device) {
    if (!policy_of(device).has_streams) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    stream_ = guard.getStreamFromGlobalPool(device);
    reached_.emplace(device.type());
    reached_->record(guard.getStream(device));
  }
  // Called on the thread.
  std::unique_ptr<c10::StreamGuard> enter() {
    if (!stream_) return nullptr;
    auto guard = std::make_unique<c10::StreamGuard>(*stream_);  // first: it also chooses the device
    reached_->block(*stream_);
    return guard;
  }

 private:
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> reached_;
};

// Host memory for copies, reused by the next save.
class Staging {
 public:
  explicit Staging(int64_t most) : most_(most) {}

  // A copy of `flat`; undefined if there is no room.
  at::Tensor copy(size_t index, const at::Tensor& flat) {
    if (index >= memory_.size()) memory_.resize(index + 1);
    at::Tensor& place = memory_[index];
    const auto bytes = static_cast<int64_t>(flat.nbytes());
    if (!place.defined() || place.numel() != flat.numel() || place.scalar_type() != flat.scalar_type()) {
      if (place.defined()) bytes_ -= static_cast<int64_t>(place.nbytes());
      place = at::Tensor();
      if (bytes > most_ - bytes_) return {};
      place = at::empty(flat.sizes(),
                        at::TensorOptions().dtype(flat.scalar_type()).pinned_memory(!flat.is_cpu()));
      bytes_ += bytes;
    }
    place.copy_(flat);
    return place;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t most_;
  std::atomic<int64_t> bytes_{0};
  std::vector<at::Tensor> memory_;
};

// One save, from its beginning on the training's thread to its end on its own.
class BackgroundSave {
 public:
  BackgroundSave(FileOps& files, std::string folder, const RunState& run, Model& model,
                 const SaveOptions& options, Staging& staging)
      : files_(files),
        folder_(std::move(folder)),
        options_(options),
        staging_(staging),
        meeting_(model.world, "saving " + folder_, options.timeout),
        beside_(model.world.device()),
        begun_(begin_save(files, folder_, run, options, true)) {
    for_live([&](Held&) { ++live_; });
    thread_ = std::thread([this] { work(); });
  }
  ~BackgroundSave() {
    if (thread_.joinable()) thread_.join();
  }

  // Returns once the save reads no memory that training may change.
  void wait_until_copied() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return live_ == 0 || done_; });
  }
  // Returns once the save has ended. Throws RendezvousError if a group of the ranks fails meanwhile: a rank
  // in a call that this one is not in will not save either.
  void wait_in_meeting() {
    const WaitScope scope(meeting_.world());
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLook, [&] { return done_; }))
      if (const auto fault = meeting_.world().state().activity->new_fault())
        throw RendezvousError("while waiting for the previous save into " + folder_ +
                              ", a group of the ranks failed: rank " + std::to_string(fault->culprit) + ": " +
                              fault->reason);
  }
  bool done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  // Null or the error, once the save is done.
  std::exception_ptr join() {
    const WaitScope scope(meeting_.world());
    if (thread_.joinable()) thread_.join();
    return error_;
  }
  const std::string& path() const { return path_; }
  double seconds() const { return seconds_; }

 private:
  template <class Fn>
  void for_live(Fn fn) {
    for (std::vector<Held>* part : {&begun_.snapshot.model, &begun_.snapshot.state})
      for (Held& held : *part)
        if (held.live) fn(held);
  }

  void work() {
    const auto start = Clock::now();
    std::exception_ptr failed;
    try {
      const Quiet quiet;
      const auto stream = beside_.enter();
      if (begun_.error.empty()) begun_.error = error_of([&] { stage(); });
      path_ = write_save(files_, folder_, meeting_, begun_, options_, [&](const Held& held) {
        if (held.live) release();
      });
    } catch (...) {
      failed = std::current_exception();
    }
    begun_.turn.reset();  // lets the next save into the folder begin
    const std::lock_guard lock(mutex_);
    error_ = failed;
    seconds_ = seconds_since(start);
    done_ = true;
    changed_.notify_all();
  }

  void stage() {
    size_t index = 0;
    for_live([&](Held& held) {
      const at::Tensor copy = staging_.copy(index++, held.flat);
      if (!copy.defined()) return;
      held.flat = copy;
      held.live = false;
      release();
    });
  }

  void release() {
    const std::lock_guard lock(mutex_);
    --live_;
    changed_.notify_all();
  }

  static constexpr Milliseconds kLook{20};

  FileOps& files_;
  std::string folder_;
  SaveOptions options_;
  Staging& staging_;
  Meeting meeting_;
  BesideTraining beside_;
  BegunSave begun_;
  std::string path_;
  double seconds_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t live_ = 0;  // tensors read from memory that training writes
  bool done_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace detail

struct BackgroundSaver::State {
  State(std::string folder_, const SaveOptions& options_, int64_t staging_bytes, detail::FileOps& files_)
      : files(files_), folder(std::move(folder_)), options(options_), staging(staging_bytes) {}

  // Waits for the save in flight. Returns its error, or null.
  std::exception_ptr finish() {
    if (!save) return nullptr;
    const std::exception_ptr error = save->join();
    stats.seconds_saving += save->seconds();
    ++(error ? stats.failed : stats.saved);
    if (!error) last = save->path();
    save.reset();
    return error;
  }

  detail::FileOps& files;
  std::string folder;
  SaveOptions options;
  detail::Staging staging;
  BackgroundSaverStats stats;
  std::string last;
  std::shared_ptr<detail::BackgroundSave> save;
};

BackgroundSaver::BackgroundSaver(std::string folder, const SaveOptions& options, int64_t staging_bytes)
    : BackgroundSaver(std::move(folder), options, staging_bytes, detail::posix_files()) {}

BackgroundSaver::BackgroundSaver(std::string folder, const SaveOptions& options, int64_t staging_bytes,
                                 detail::FileOps& files)
    : state_(std::make_unique<State>(std::move(folder), options, staging_bytes, files)) {}

BackgroundSaver::~BackgroundSaver() {
  try {
    (void)wait();
  } catch (const RendezvousError& error) {
    // The exception that ends the saver tells of the lost rank, too.
    const std::string text = std::string("a checkpoint was not saved: ") + error.what();
    if (std::uncaught_exceptions() > 0)
      detail::log_debug([&] { return text; });
    else
      detail::log_warn(text);
  } catch (const std::exception& error) {
    detail::log_warn(std::string("a checkpoint was not saved: ") + error.what());
  }
}

std::string BackgroundSaver::wait() {
  const std::exception_ptr error = state_->finish();
  if (!error) return state_->last;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    state_->stats.last_error = thrown.what();
    throw;
  }
}

void BackgroundSaver::save(const RunState& run) {
  const auto called = detail::Clock::now();
  const detail::InMeeting call(detail::model_of(run.model.engine()).world,
                               "BackgroundSaver::save('" + state_->folder + "')");
  if (state_->save) state_->save->wait_in_meeting();
  (void)wait();
  state_->stats.seconds_behind_save += detail::seconds_since(called);
  const auto start = detail::Clock::now();
  detail::before_save(run, state_->options);
  state_->save = std::make_shared<detail::BackgroundSave>(state_->files, state_->folder, run,
                                                          detail::model_of(run.model.engine()),
                                                          state_->options, state_->staging);
  for (detail::Model* model : detail::models_of(run)) {
    model->announce_change();  // another saver copies first: one is enough to wait for
    model->before_change = [save = std::weak_ptr(state_->save), stats = &state_->stats] {
      const auto begun = detail::Clock::now();
      const auto one = save.lock();
      if (!one) return;
      one->wait_until_copied();
      stats->seconds_before_writes += detail::seconds_since(begun);
    };
  }
  state_->stats.seconds_in_save += detail::seconds_since(start);
}

bool BackgroundSaver::busy() const { return state_->save && !state_->save->done(); }

BackgroundSaverStats BackgroundSaver::stats() const {
  BackgroundSaverStats stats = state_->stats;
  stats.staging_bytes = state_->staging.bytes();
  return stats;
}

}  // namespace fsdp
