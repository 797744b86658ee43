#include "comm/gloo/watch_loop.h"

#include <algorithm>

#include "comm/await.h"
#include "launch/store_silence.h"

namespace fsdp::detail {

namespace {

constexpr Milliseconds kTick{10};
constexpr Milliseconds kLookEvery{200};
constexpr Milliseconds kCompareEvery{1000};
constexpr Milliseconds kTellAfter{2000};
constexpr Milliseconds kStoreAnswers{3000};

}  // namespace

GlooWatch::Loop::Loop(const GroupInfo& info) : info_(info) {}

void GlooWatch::Loop::begin(Wait wait) {
  const std::lock_guard lock(mutex_);
  wait_ = std::move(wait);
}

void GlooWatch::Loop::end() {
  const std::lock_guard lock(mutex_);
  wait_.reset();
}

void GlooWatch::Loop::find_fault(const std::string& words) {
  std::unique_lock lock(mutex_);
  wait_->closed = words.empty() ? "gloo ended the wait" : words.substr(0, words.find('\n'));
  wake_.notify_all();
  answer_.wait_for(lock, kStoreAnswers, [&] { return fault_.has_value(); });
  if (!fault_) fault_ = store_lost(*wait_);
}

void GlooWatch::Loop::report_late_alone() {
  const std::lock_guard lock(mutex_);
  if (fault_) return;
  fault_ = late(*wait_, wait_->peer, std::to_string(world_rank(info_, wait_->peer)));
  fault_->reason += ". The store does not answer either: is the network between the hosts down?";
}

void GlooWatch::Loop::abort(AbortCause cause, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (fault_) return;
  fault_ = GlooFault{.kind = CommFault::aborted, .cause = cause, .culprit = info_.rank, .reason = reason};
  unpublished_ = fault_;
  wake_.notify_all();
}

std::optional<GlooFault> GlooWatch::Loop::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

bool GlooWatch::Loop::stop() {
  constexpr Milliseconds kPatience{1000};
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  return answer_.wait_for(lock, kPatience, [&] { return ended_; });
}

// A wait that gloo has not begun yet forgets the end that was asked for, so it is asked for in every tick.
void GlooWatch::Loop::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, kTick,
                   [&] { return stopping_ || unpublished_ || (wait_ && !wait_->closed.empty() && !fault_); });
    if (unpublished_) {
      lock.unlock();
      publish();
      lock.lock();
    }
    if (stopping_) break;
    if (!wait_) {
      if (!told_) continue;
      lock.unlock();
      untell();
      lock.lock();
      continue;
    }
    if (fault_) {
      if (wait_->work) wait_->work->abort();
      continue;
    }
    const Wait wait = *wait_;
    lock.unlock();
    look(wait);
    lock.lock();
  }
  ended_ = true;
  answer_.notify_all();
}

void GlooWatch::Loop::look(const Wait& wait) {
  const auto now = Clock::now();
  try {
    if (!wait.closed.empty()) return find_closed(wait);
    if (now >= wait.deadline) return find_late(wait);
    if (now - std::max(wait.begun_at, looked_at_) < kLookEvery) return;
    looked_at_ = now;
    look_at_store(wait);
  } catch (const std::exception&) {
    store_.reset();  // its connection is of no use any more
  }
}

void GlooWatch::Loop::look_at_store(const Wait& wait) {
  if (const std::string text = read(*store(), kGlooFault); !text.empty())
    return report(GlooFault::from_text(text));
  const Milliseconds patience = std::min(kTellAfter, info_.options.timeout / 2);
  if (wait.operation.is_message() || elapsed_since(wait.begun_at) < patience) return;
  if (!told_) tell(wait);
  if (elapsed_since(compared_at_) < kCompareEvery) return;
  compared_at_ = Clock::now();
  if (const auto fault = find_mismatch(wait)) report(*fault);
}

void GlooWatch::Loop::tell(const Wait& wait) {
  write(gloo_wait_key(info_.rank), std::to_string(wait.operation.sequence) + " " + wait.operation.signature);
  told_ = true;
}

void GlooWatch::Loop::untell() {
  told_ = false;
  try {
    write(gloo_wait_key(info_.rank), "");
  } catch (const std::exception&) {
    store_.reset();
  }
}

// The first fault that a rank writes is everybody's.
void GlooWatch::Loop::report(const GlooFault& fault) {
  GlooFault first = fault;
  try {
    const std::string winner = store()->compareSet(kGlooFault, std::string(), fault.to_text());
    if (!winner.empty()) first = GlooFault::from_text(winner);
  } catch (const std::exception&) {
    store_.reset();  // it ended with its host; peers find out by themselves
  }
  settle(first);
}

void GlooWatch::Loop::settle(const GlooFault& fault) {
  const std::lock_guard lock(mutex_);
  if (!fault_) fault_ = fault;
  answer_.notify_all();
}

void GlooWatch::Loop::publish() {
  std::optional<GlooFault> fault;
  {
    const std::lock_guard lock(mutex_);
    fault.swap(unpublished_);
  }
  report(*fault);
}

// A connection of this thread's own: requests of other threads must not wait behind one that gets no answer.
GlooWatch::Loop::Store& GlooWatch::Loop::store() {
  if (!store_) {
    store_ = info_.store->clone();
    limit_silence_of_clones();
  }
  return store_;
}

std::string GlooWatch::Loop::read(::c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return "";
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

void GlooWatch::Loop::write(const std::string& key, const std::string& value) {
  store()->set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

}  // namespace fsdp::detail
