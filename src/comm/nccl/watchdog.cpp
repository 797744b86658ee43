#include "comm/nccl/watchdog.h"

#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <sstream>

#include "base/log.h"
#include "comm/await.h"

namespace fsdp::detail {

namespace {

constexpr Milliseconds kPeriod{10};
constexpr int kStoreEvery = 20;  // periods between reads of the store
constexpr Milliseconds kPeersAnswer{2000};
constexpr Milliseconds kShownAfter{500};
constexpr const char* kFaultKey = "fault";

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::vector<int> ranks_of_this_host(const GroupInfo& info) {
  std::vector<int> ranks;
  const Peer& self = info.peers[static_cast<size_t>(info.rank)];
  for (int r = 0; r < info.size; ++r) {
    const Peer& peer = info.peers[static_cast<size_t>(r)];
    if (peer.host_id == self.host_id && peer.pid != self.pid) ranks.push_back(r);
  }
  return ranks;
}

// What LibTorch says of an error of the device, without the stack and general advice below it.
std::string first_lines(const std::string& what) {
  return what.substr(0, what.find("\nException raised from"));
}

std::vector<int64_t> pids_of(const GroupInfo& info, const std::vector<int>& ranks) {
  std::vector<int64_t> pids;
  for (const int r : ranks) pids.push_back(info.peers[static_cast<size_t>(r)].pid);
  return pids;
}

}  // namespace

Watchdog::Watchdog(const GroupInfo& info, Hooks hooks)
    : info_(info),
      hooks_(std::move(hooks)),
      watch_(pids_of(info, ranks_of_this_host(info))),
      watched_(ranks_of_this_host(info)),
      thread_([this] { loop(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::begin(const NcclOperation& operation) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(operation);
}

void Watchdog::enqueued(uint64_t sequence, std::shared_ptr<c10::Event> done) {
  const std::lock_guard lock(mutex_);
  for (auto it = queue_.rbegin(); it != queue_.rend(); ++it) {
    if (it->sequence != sequence) continue;
    it->done = std::move(done);
    return;
  }
}

bool Watchdog::faulted() const {
  const std::lock_guard lock(mutex_);
  return found_.has_value();
}

std::optional<CommError> Watchdog::fault(const NcclOperation& operation) const {
  const std::lock_guard lock(mutex_);
  if (!found_) return std::nullopt;
  return CommError({.fault = found_->kind,
                    .rank = world_rank(info_, info_.rank),
                    .culprit = found_->culprit < 0 ? -1 : world_rank(info_, found_->culprit),
                    .op = operation.info.op,
                    .label = operation.info.label,
                    .sequence = operation.sequence,
                    .elapsed = elapsed_since(operation.issued_at),
                    .reason = found_->reason});
}

AbortCause Watchdog::abort_cause() const {
  const std::lock_guard lock(mutex_);
  return found_ ? found_->cause : AbortCause::caller;
}

void Watchdog::report(CommFault kind, int culprit, const std::string& reason) {
  report(Found{kind, AbortCause::caller, culprit, reason});
}

void Watchdog::abort(AbortCause cause, const std::string& reason) {
  report(Found{CommFault::aborted, cause, info_.rank, reason});
}

void Watchdog::report(const Found& found) {
  {
    const std::lock_guard lock(mutex_);
    if (found_) return;
    found_ = found;
    if (found.culprit >= 0) found_->reason = name_of(info_, found.culprit) + ": " + found.reason;
  }
  log(LogLevel::debug, "watchdog of rank " + std::to_string(world_rank(info_, info_.rank)) + ": " +
                           to_string(found.kind) + ": " + found.reason);
  try {
    if (!info_.store->check({kFaultKey})) info_.store->set(kFaultKey, to_bytes(to_text(found)));
  } catch (const std::exception&) {
    // The store ended with its host; peers find out by themselves.
  }
  hooks_.on_fault();
  log(LogLevel::debug,
      "watchdog of rank " + std::to_string(world_rank(info_, info_.rank)) + ": communicators aborted");
}

void Watchdog::loop() {
  // A thread begins on the first device, where asking for an event would take half a GiB for a context.
  const c10::OptionalDeviceGuard device(info_.device.is_cpu() ? std::nullopt
                                                              : std::optional<c10::Device>(info_.device));
  for (int period = 0;; ++period) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kPeriod, [&] { return stopping_; });
      if (stopping_ || found_) return;
    }
    try {
      look(period % kStoreEvery == 0);
    } catch (const std::exception& error) {
      return report_device_error(error);
    }
  }
}

void Watchdog::look(bool at_store) {
  drop_finished();
  show_wait();
  look_for_dead();
  if (const std::string error = hooks_.async_error(); !error.empty()) report_failure(error);
  look_for_late();
  if (at_store) look_at_store();
}

void Watchdog::drop_finished() {
  const std::lock_guard lock(mutex_);
  while (!queue_.empty() && queue_.front().done && queue_.front().done->query()) queue_.pop_front();
}

// The host does not wait for operations of a device. So a rank counts as waiting for others while its oldest
// operation makes no progress: see Note [Who is late].
void Watchdog::show_wait() {
  std::optional<uint64_t> oldest;
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty()) oldest = queue_.front().sequence;
  }
  if (oldest != oldest_) {
    wait_.reset();
    oldest_ = oldest;
    oldest_since_ = Clock::now();
  }
  if (oldest_ && !wait_ && elapsed_since(oldest_since_) > kShownAfter)
    wait_ = std::make_unique<WaitScope>(info_);
}

// A peer that ended is a fault only while work is in flight: at the end of a run ranks leave one by one.
void Watchdog::look_for_dead() {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return;
  }
  report_dead();
}

bool Watchdog::report_dead() {
  int dead = -1;
  {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < static_cast<int>(watched_.size()) && dead < 0; ++i)
      if (watch_.dead(i)) dead = i;
  }
  if (dead >= 0) report(CommFault::peer_died, watched_[static_cast<size_t>(dead)], "its process has died");
  return dead >= 0;
}

void Watchdog::report_device_error(const std::exception& error) {
  report(CommFault::backend, info_.rank, first_lines(error.what()));
}

// NCCL often reports a death before the process is quite gone; to name the peer, a short wait is worth it.
void Watchdog::report_failure(const std::string& what) {
  const auto start = Clock::now();
  while (!faulted() && !report_dead()) {
    if (elapsed_since(start) > kPeersAnswer) return report(CommFault::backend, -1, what);
    std::this_thread::sleep_for(kPeriod);
  }
}

void Watchdog::look_for_late() {
  std::optional<NcclOperation> late;
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty() && elapsed_since(queue_.front().issued_at) > info_.options.timeout)
      late = queue_.front();
  }
  if (late) report_late(*late);
}

// Every rank that times out writes the operation it waits in. A rank that writes nothing has not come this
// far; one that writes another operation has a different execution order.
void Watchdog::report_late(const NcclOperation& late) {
  const auto key = [&](int rank) {
    return "late/" + std::to_string(late.sequence) + "/" + std::to_string(rank);
  };
  const std::string waited = std::to_string(elapsed_since(late.issued_at).count()) + " ms";
  info_.store->set(key(info_.rank), to_bytes(late.signature));
  const auto start = Clock::now();
  int culprit = -1;
  std::string silent;
  for (int r = 0; r < info_.size; ++r) {
    while (!info_.store->check({key(r)}) && elapsed_since(start) < kPeersAnswer)
      std::this_thread::sleep_for(kPeriod);
    if (!info_.store->check({key(r)})) {
      if (culprit < 0) culprit = r;
      silent += (silent.empty() ? "" : ", ") + std::to_string(world_rank(info_, r));
      continue;
    }
    const auto bytes = info_.store->get(key(r));
    const std::string theirs(bytes.begin(), bytes.end());
    if (theirs != late.signature)
      return report(CommFault::mismatch, r,
                    "it issued " + theirs + " where rank " + std::to_string(world_rank(info_, info_.rank)) +
                        " issued " + late.signature +
                        ". Every rank must issue the same collectives in the same order");
  }
  if (culprit < 0)
    return report(CommFault::timeout, -1,
                  "it was not done after " + waited + " though every rank has issued it");
  report(CommFault::timeout, culprit,
         "it did not do its part within " + waited + " (ranks not there: " + silent +
             "). It may be stopped, stuck or much slower than the others");
}

std::string Watchdog::to_text(const Found& found) {
  return std::to_string(static_cast<int>(found.kind)) + " " + std::to_string(static_cast<int>(found.cause)) +
         " " + std::to_string(found.culprit) + " " + found.reason;
}

Watchdog::Found Watchdog::from_text(const std::string& text) {
  std::istringstream in(text);
  int kind = 0;
  int cause = 0;
  Found found;
  in >> kind >> cause >> found.culprit;
  std::getline(in >> std::ws, found.reason);
  found.kind = static_cast<CommFault>(kind);
  found.cause = static_cast<AbortCause>(cause);
  return found;
}

void Watchdog::look_at_store() {
  try {
    if (!info_.store->check({kFaultKey})) return;
    const auto bytes = info_.store->get(kFaultKey);
    report(from_text({bytes.begin(), bytes.end()}));
  } catch (const std::exception& error) {
    report(CommFault::backend, -1,
           std::string("the store is gone, and with it the rank that served it: ") + error.what());
  }
}

}  // namespace fsdp::detail
