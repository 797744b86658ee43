#include "comm/shared/gate.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/host.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fsdp::detail {

namespace {

// Shared futexes: the word lies in memory that several processes map.
long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

Gate::Gate(ControlView view, int rank, int ranks_on_host, std::unique_ptr<Liveness> liveness,
           std::vector<int> world_ranks)
    : view_(std::move(view)),
      rank_(rank),
      liveness_(std::move(liveness)),
      world_ranks_(std::move(world_ranks)),
      crowded_(ranks_on_host > usable_cpus()) {
  view_.page(rank_).state.store(static_cast<uint32_t>(RankState::joined));
}

void Gate::note(std::string_view why, int culprit) {
  RankPage& page = view_.page(rank_);
  page.noted.store(0);
  if (why.empty()) return;
  const size_t length = std::min(why.size(), kReasonBytes - 1);
  for (size_t i = 0; i < length; ++i) page.why[i].store(why[i], std::memory_order_relaxed);
  page.why[length].store('\0', std::memory_order_relaxed);
  page.noted.store(static_cast<uint32_t>(culprit) + 1);
}

void Gate::show(std::string_view activity, uint64_t meetings) {
  RankPage& page = view_.page(rank_);
  std::string shown(activity);
  if (shown.size() >= kActivityBytes) shown = shown.substr(0, kActivityBytes - 4) + "...";
  const size_t length = shown.size();
  for (size_t i = 0; i < length; ++i) page.activity[i].store(shown[i], std::memory_order_relaxed);
  page.activity[length].store('\0', std::memory_order_relaxed);
  page.activity_since.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  page.meetings.store(meetings, std::memory_order_release);
}

std::string Gate::activity(int rank) const {
  const RankPage& page = view_.page(rank);
  std::string text;
  for (size_t i = 0; i < kActivityBytes; ++i) {
    const char next = page.activity[i].load(std::memory_order_relaxed);
    if (next == '\0') break;
    text += next;
  }
  return text;
}

std::string Gate::activity_text(int rank) const {
  const std::string text = activity(rank);
  if (text.empty()) return "";
  const auto since = Clock::time_point(Clock::duration(view_.page(rank).activity_since.load()));
  const auto seconds = elapsed_since(since).count() / 1000;
  return "is " + text + (seconds == 0 ? "" : ", for " + std::to_string(seconds) + " s");
}

bool Gate::meets_without_this(int rank) const {
  const uint64_t theirs = view_.page(rank).meetings.load(std::memory_order_acquire);
  return theirs % 2 == 1 && theirs > view_.page(rank_).meetings.load(std::memory_order_relaxed);
}

bool Gate::others_miss_this() const {
  for (int r = 0; r < view_.size(); ++r)
    if (given_up(r) < given_up(rank_)) return true;
  return false;
}

void Gate::report_note(int rank) {
  const RankPage& page = view_.page(rank);
  const uint32_t noted = page.noted.load();
  if (noted == 0) return;
  std::string why;
  for (size_t i = 0; i < kReasonBytes && page.why[i].load(std::memory_order_relaxed) != '\0'; ++i)
    why += page.why[i].load(std::memory_order_relaxed);
  report(CommFault::peer_left, static_cast<int>(noted - 1), why);
}

void Gate::leave(bool clean) {
  view_.page(rank_).state.store(static_cast<uint32_t>(clean ? RankState::left : RankState::left_owing));
  ring(kEverything);
}

void Gate::ring(uint32_t interests) {
  for (int r = 0; r < view_.size(); ++r)
    if (r != rank_) ring(r, interests);
}

void Gate::ring(int rank, uint32_t interests) {
  RankPage& page = view_.page(rank);
  if ((page.asleep.load() & interests) == 0) return;
  page.doorbell.fetch_add(1);
  futex(page.doorbell, FUTEX_WAKE, INT_MAX, nullptr);
}

uint32_t Gate::begin_sleep(uint32_t interests) {
  RankPage& page = view_.page(rank_);
  const uint32_t seen = page.doorbell.load();
  page.seen_waiting.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  page.asleep.store(interests);
  return seen;
}

void Gate::end_sleep() { view_.page(rank_).asleep.store(0); }

bool Gate::waits(int rank) const {
  const auto looked = view_.page(rank).seen_waiting.load(std::memory_order_relaxed);
  return Clock::now() - Clock::time_point(Clock::duration(looked)) < 10 * kSlice;
}

void Gate::sleep(uint32_t seen, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
  const auto slice = std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(1), kSlice);
  const timespec time{.tv_sec = 0, .tv_nsec = slice.count()};
  futex(view_.page(rank_).doorbell, FUTEX_WAIT, seen, &time);
}

// Polls before sleeping, since waking up costs more than most waits last. If ranks share processors, it
// yields to other threads.
void Gate::pause() const {
  if (crowded_) {
    ::sched_yield();
    return;
  }
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Gate::look_for_dead() {
  if (!liveness_ || faulted()) return;
  for (int r = 0; r < view_.size(); ++r)
    if (r != rank_ && !has_left(r) && liveness_->dead(r)) {
      report_note(r);
      const std::string doing = activity(r);
      return report(CommFault::peer_died, r,
                    "its process has died" + (doing.empty() ? "" : "; it was " + doing));
    }
}

bool Gate::has_left(int rank) const {
  return view_.page(rank).state.load() >= static_cast<uint32_t>(RankState::left);
}

// A rank may have left because another died: then that one is named.
void Gate::report_left(int rank) {
  look_for_dead();
  report_note(rank);
  const std::string theirs = activity(rank), mine = activity(rank_);
  if (theirs.empty() || mine.empty())
    return report(CommFault::peer_left, rank,
                  "it closed its communicator (finished, or failed on its own) while others still need it");
  report(CommFault::peer_left, rank,
         "it ended or dropped the model (it was " + theirs + ") while rank " +
             std::to_string(world_rank(rank_)) + " is " + mine + ". " + kSameCalls);
}

void Gate::report(CommFault kind, int culprit, std::string_view reason) {
  const std::lock_guard lock(report_mutex_);
  if (faulted()) return;
  char* text = view_.page(rank_).reason;
  const size_t length = std::min(reason.size(), kReasonBytes - 1);
  std::memcpy(text, reason.data(), length);
  text[length] = '\0';
  uint64_t none = 0;
  const Fault fault{.kind = static_cast<uint8_t>(static_cast<int>(kind) + 1),
                    .culprit = static_cast<uint16_t>(culprit),
                    .reporter = static_cast<uint16_t>(rank_)};
  if (view_.fault().compare_exchange_strong(none, fault.pack())) ring(kEverything);
}

std::string Gate::fault_reason() const { return view_.page(fault().reporter).reason; }

}  // namespace fsdp::detail
