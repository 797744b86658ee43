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

Gate::Gate(ControlView view, int rank, int ranks_on_host, std::unique_ptr<Liveness> liveness)
    : view_(std::move(view)),
      rank_(rank),
      liveness_(std::move(liveness)),
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

// A short look before sleeping, since waking up costs more than most waits last. Where ranks share processors
// it gives way to whoever can run.
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
      return report(CommFault::peer_died, r, "its process has died");
    }
}

bool Gate::has_left(int rank) const {
  return view_.page(rank).state.load() >= static_cast<uint32_t>(RankState::left);
}

// Who left may have left because another died: that one is named.
void Gate::report_left(int rank) {
  look_for_dead();
  report_note(rank);
  report(CommFault::peer_left, rank,
         "it closed its communicator (finished, or failed on its own) while others still need it");
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
