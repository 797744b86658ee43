#include "comm/gloo/watch_loop.h"

#include <algorithm>
#include <sstream>
#include <thread>

#include "comm/await.h"

namespace fsdp::detail {

namespace {

constexpr Milliseconds kTick{10};
constexpr Milliseconds kLookEvery{200};
constexpr Milliseconds kCompareEvery{1000};
constexpr Milliseconds kTellAfter{2000};
constexpr Milliseconds kLastWords{300};   // of a peer whose connection has closed, on their way to the store
constexpr Milliseconds kStoreAnswers{3000};
constexpr Milliseconds kProcessEnds{2000};  // from the end of its connections
constexpr const char* kFault = "gloo/fault";

std::string wait_key(int rank) { return "gloo/waits/" + std::to_string(rank); }
std::string left_key(int rank) { return "gloo/left/" + std::to_string(rank); }

// "17 all_gather 'blocks.0' ...": the operation that a rank waits in.
struct Told {
  uint64_t sequence = 0;
  std::string signature;
};

std::optional<Told> parse_told(const std::string& text) {
  if (text.empty()) return std::nullopt;
  Told told;
  std::istringstream in(text);
  in >> told.sequence;
  std::getline(in >> std::ws, told.signature, '\0');
  return told;
}

bool is_message(const GlooOperation& operation) { return operation.signature.empty(); }

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
    wake_.wait_for(lock, kTick, [&] {
      return stopping_ || unpublished_ || (wait_ && !wait_->closed.empty() && !fault_);
    });
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
  if (const std::string text = read(*store(), kFault); !text.empty())
    return report(GlooFault::from_text(text));
  const Milliseconds patience = std::min(kTellAfter, info_.options.timeout / 2);
  if (is_message(wait.operation) || elapsed_since(wait.begun_at) < patience) return;
  if (!told_) tell(wait);
  if (elapsed_since(compared_at_) < kCompareEvery) return;
  compared_at_ = Clock::now();
  if (const auto fault = find_mismatch(wait)) report(*fault);
}

void GlooWatch::Loop::tell(const Wait& wait) {
  write(wait_key(info_.rank), std::to_string(wait.operation.sequence) + " " + wait.operation.signature);
  told_ = true;
}

void GlooWatch::Loop::untell() {
  told_ = false;
  try {
    write(wait_key(info_.rank), "");
  } catch (const std::exception&) {
    store_.reset();
  }
}

std::optional<GlooFault> GlooWatch::Loop::find_mismatch(const Wait& wait) {
  const GlooOperation& mine = wait.operation;
  for (int r = 0; r < info_.size; ++r) {
    if (r == info_.rank) continue;
    const auto told = parse_told(read(*store(), wait_key(r)));
    if (!told || told->sequence != mine.sequence || told->signature == mine.signature) continue;
    return GlooFault{.kind = CommFault::mismatch,
                     .culprit = r,
                     .reason = "it issued " + told->signature + " where rank " +
                               std::to_string(world_rank(info_, info_.rank)) + " issued " + mine.signature +
                               ". Every rank must issue the same collectives in the same order"};
  }
  return std::nullopt;
}

bool GlooWatch::Loop::on_this_host(int rank) const {
  const auto host = [&](int r) -> const std::string& { return info_.peers[static_cast<size_t>(r)].host_id; };
  return host(rank) == host(info_.rank);
}

bool GlooWatch::Loop::is_dead(int rank) const {
  const Peer& peer = info_.peers[static_cast<size_t>(rank)];
  if (!on_this_host(rank) || peer.pid == info_.peers[static_cast<size_t>(info_.rank)].pid) return false;
  return ProcessWatch({peer.pid}).dead(0);
}

// The connection to `wait.peer` has ended. The caller waits for the answer, so its connection to the store is
// free: unlike a new one, it shows at once if the store is gone.
void GlooWatch::Loop::find_closed(const Wait& wait) {
  const auto start = Clock::now();
  const Milliseconds patience = on_this_host(wait.peer) ? kProcessEnds : kLastWords;
  try {
    while (elapsed_since(start) < patience) {
      for (const std::string& key : {std::string(kFault), left_key(wait.peer)})
        if (const std::string text = read(*info_.store, key); !text.empty())
          return report(GlooFault::from_text(text));
      if (is_dead(wait.peer))
        return report({.kind = CommFault::peer_died, .culprit = wait.peer, .reason = "its process has died"});
      std::this_thread::sleep_for(kTick);
    }
  } catch (const std::exception&) {
    return settle(store_lost(wait));
  }
  if (on_this_host(wait.peer))
    return report({.kind = CommFault::peer_left, .culprit = wait.peer, .reason = kClosedCommunicator});
  report({.kind = CommFault::peer_died,
          .culprit = wait.peer,
          .reason = "its connection ended: its process has died, or its host is gone (" + wait.closed + ")"});
}

// Rank 0 usually serves the store. If that has ended, the peer probably left because of it.
GlooFault GlooWatch::Loop::store_lost(const Wait& wait) const {
  GlooFault fault{.kind = CommFault::peer_died, .culprit = wait.peer, .reason = "its connection ended"};
  for (int r = 0; r < info_.size; ++r)
    if (world_rank(info_, r) == 0 && r != info_.rank && (!on_this_host(r) || is_dead(r))) fault.culprit = r;
  fault.reason = "its process has died, or its host is gone: the store does not answer, and a connection to " +
                 name_of(info_, wait.peer) + " ended (" + wait.closed + ")";
  return fault;
}

// At the deadline: the rank that is not in this operation is late.
void GlooWatch::Loop::find_late(const Wait& wait) {
  if (is_message(wait.operation))
    return report(late(wait, wait.peer, std::to_string(world_rank(info_, wait.peer))));
  if (!told_) tell(wait);
  if (const auto fault = find_mismatch(wait)) return report(*fault);
  std::vector<int> silent;
  std::string names;
  for (int r = 0; r < info_.size; ++r) {
    if (r == info_.rank) continue;
    const auto told = parse_told(read(*store(), wait_key(r)));
    if (told && told->sequence >= wait.operation.sequence) continue;
    silent.push_back(r);
    names += (names.empty() ? "" : ", ") + std::to_string(world_rank(info_, r));
  }
  if (silent.empty())
    return report({.kind = CommFault::timeout,
                   .reason = "no data came from " + name_of(info_, wait.peer) + " within " +
                             std::to_string(elapsed_since(wait.operation.issued_at).count()) +
                             " ms, though every rank is in this operation. Is the network between the hosts "
                             "down?"});
  const bool peer_is = std::find(silent.begin(), silent.end(), wait.peer) != silent.end();
  report(late(wait, peer_is ? wait.peer : silent.front(), names));
}

GlooFault GlooWatch::Loop::late(const Wait& wait, int culprit, const std::string& silent) const {
  const std::string waited = std::to_string(elapsed_since(wait.operation.issued_at).count());
  return {.kind = CommFault::timeout,
          .culprit = culprit,
          .reason = "it has not come to this " + std::string(wait.operation.info.op) + " within " + waited +
                    " ms (ranks not there: " + silent +
                    "). It may be stopped, stuck, much slower than the others, or in another call"};
}

// The first fault that a rank writes is everybody's.
void GlooWatch::Loop::report(const GlooFault& fault) {
  GlooFault first = fault;
  try {
    const std::string text = fault.to_text();
    const auto winner = store()->compareSet(kFault, {}, {text.begin(), text.end()});
    if (!winner.empty()) first = GlooFault::from_text({winner.begin(), winner.end()});
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
  if (!store_) store_ = info_.store->clone();
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
