#include "comm/heartbeat/pulse.h"

#include <exception>
#include <thread>
#include <utility>

#include "base/log.h"
#include "comm/await.h"
#include "comm/heartbeat/wait_words.h"

namespace fsdp::detail {

namespace {

constexpr Milliseconds kPeriod{250};
constexpr int kFarEvery = 2;  // looks
constexpr Milliseconds kLongestEnd{1000};

}  // namespace

Pulse::Pulse(const GroupInfo& world, std::shared_ptr<WaitOptions> options)
    : world_(world), options_(std::move(options)), beats_(world), watch_(world.rank, beats_.far()) {
  world_.heartbeat = nullptr;  // it owns this
}

void Pulse::start(const std::shared_ptr<Pulse>& self) {
  self->world_.activity->add(*self);
  std::thread([self] { self->loop(); }).detach();
}

void Pulse::stop() {
  world_.activity->remove(*this);
  beats_.own_page().left = 1;
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  wake_.wait_for(lock, kLongestEnd, [&] { return ended_; });
}

void Pulse::loop() {
  for (;;) {
    look();
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, kPeriod, [&] { return stopping_ || look_now_; });
    if (std::exchange(look_now_, false) || !stopping_) continue;
    ended_ = true;
    wake_.notify_all();
    return;
  }
}

void Pulse::look() {
  const auto now = Clock::now();
  const Milliseconds since = looked_at_ ? elapsed_since(*looked_at_) : Milliseconds{0};
  looked_at_ = now;
  beats_.own_page().count.fetch_add(1);
  look_near(since);
  if (beats_.has_far() && !store_gone_ && looks_++ % kFarEvery == 0) look_far();
  judge();
}

void Pulse::look_near(Milliseconds since) {
  const std::lock_guard lock(mutex_);
  for (const int rank : beats_.near()) watch_.see(rank, beats_.read_near(rank), since);
}

// See Note [Beats of other hosts].
void Pulse::look_far() {
  bool needed = false, speaks = false;
  {
    const std::lock_guard lock(mutex_);
    needed = depth_ > 0 || watchers_ > 0;
    speaks = speaks_for_host();
  }
  try {
    if (speaks) beats_.publish();
    if (!needed) {
      looked_far_at_.reset();
      return;
    }
    const auto far = beats_.read_far();
    const Milliseconds since = looked_far_at_ ? elapsed_since(*looked_far_at_) : Milliseconds{0};
    looked_far_at_ = Clock::now();
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, beat] : far) watch_.see(rank, beat, since);
  } catch (const std::exception&) {
    store_gone_ = true;  // it ends with its host; collectives find out by themselves
  }
}

bool Pulse::speaks_for_host() const {
  for (const int rank : beats_.near()) {
    if (rank == world_.rank) return true;
    if (!watch_.is_silent(rank) && !watch_.beat(rank).left) return false;
  }
  return true;
}

bool Pulse::lower_rank_speaks(Milliseconds patience) const {
  for (int rank = 0; rank < world_.rank; ++rank) {
    const bool far = beats_.far()[static_cast<size_t>(rank)];  // its beats are older
    const Milliseconds least = far ? Milliseconds{0} : patience / 2;
    if (watch_.beat(rank).waits_now() && !watch_.is_silent(rank) && watch_.waited(rank) >= least) return true;
  }
  return false;
}

void Pulse::judge() {
  WaitReport::Say say;
  Milliseconds waited{0};
  const std::string mine = world_.activity->get();  // before the lock: Activity calls activity_of()
  {
    const std::lock_guard lock(mutex_);
    waited = watch_.waited(world_.rank);
    const Milliseconds limit = options_->timeout();
    const Milliseconds patience = patience_.get();
    const bool long_enough = depth_ > 0 && waited >= std::min(patience, limit);
    const auto ranks = long_enough ? watch_.late(waits_in_) : std::vector<int>{};
    const auto late = ranks.empty() ? std::nullopt : std::optional(describe(ranks));
    late_ = waited >= patience ? late : std::nullopt;
    overdue_ = waited >= limit ? late : std::nullopt;
    const int silent = depth_ > 0 || watchers_ > 0 ? watch_.silent_for(limit) : -1;
    lost_ = silent < 0 ? std::nullopt : std::optional(describe(silent));
    const std::string me = "rank " + std::to_string(world_.rank) + (mine.empty() ? "" : ", " + mine + ",");
    say = report_.look(me, waited, late_, lower_rank_speaks(patience));
  }
  if (!say.log.empty()) log(say.over ? LogLevel::info : LogLevel::warn, say.log);
  if (!say.show) return;
  const std::lock_guard lock(options_->mutex);
  if (options_->show) options_->show(*say.show, waited);
}

void Pulse::fail() {
  beats_.own_page().left = 1;
  report_.forget();
}

// Ranks that fail now are marked first, so that nobody takes one of them for the rank they wait for.
void Pulse::complete(const GroupInfo& group, CommError::Details& details) {
  const std::lock_guard lock(mutex_);
  fail();
  const bool is_timeout = details.fault == CommFault::timeout;
  if (is_timeout && details.culprit >= 0) {
    const int rank = details.culprit;
    const Beat& beat = watch_.beat(rank);
    const bool has_activity =
        beat.activity.empty() || details.reason.find(beat.activity) != std::string::npos;
    details.reason +=
        has_activity ? more_about(beat, state_of(rank), silence_of(rank)) : ". It is " + describe(rank).words;
    return;
  }
  if (!is_timeout && details.fault != CommFault::backend) return;
  std::vector<int> ranks;
  for (const Peer& peer : group.peers) ranks.push_back(peer.rank);
  const auto late = watch_.late(ranks);
  if (late.empty()) return;
  if (details.culprit < 0) details.culprit = late.front();
  if (details.elapsed >= group.options.timeout) details.fault = CommFault::timeout;
  details.reason += "; this rank was waiting for " + describe(late).text();
}

std::string Pulse::state_of(int rank) const {
  const auto place = static_cast<size_t>(rank);
  return beats_.far()[place] ? "" : process_state(world_.peers[place].pid);
}

Milliseconds Pulse::silence_of(int rank) const {
  return watch_.is_silent(rank) ? watch_.silent(rank) : Milliseconds{0};
}

LateRank Pulse::describe(int rank) const {
  return {.rank = rank,
          .name = name_of(world_, rank),
          .words = where_it_is(watch_.beat(rank), state_of(rank), silence_of(rank))};
}

LateRank Pulse::describe(const std::vector<int>& ranks) const {
  LateRank late = describe(ranks.front());
  for (size_t i = 1; i < ranks.size(); ++i)
    late.words += (i == 1 ? "; also for rank " : ", ") + std::to_string(ranks[i]);
  return late;
}

void Pulse::show(const std::string& activity, uint64_t meetings, bool /*several_threads*/) {
  BeatPage& page = beats_.own_page();
  page.activity.write(activity);
  page.activity_since = Clock::now().time_since_epoch().count();
  page.meetings = meetings;
}

std::string Pulse::activity_of(int world_rank) const {
  const std::lock_guard lock(mutex_);
  const bool far = beats_.far()[static_cast<size_t>(world_rank)];
  const Beat beat = far ? watch_.beat(world_rank) : beats_.read_near(world_rank);
  if (beat.activity.empty()) return "";
  const int64_t seconds = beat.activity_ms / 1000;
  return "is " + beat.activity + (seconds == 0 ? "" : ", for " + std::to_string(seconds) + " s");
}

}  // namespace fsdp::detail
