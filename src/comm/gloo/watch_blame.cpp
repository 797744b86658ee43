// The rank at fault, found through the store. See Note [Faults between hosts].
#include <algorithm>
#include <sstream>
#include <thread>

#include "comm/await.h"
#include "comm/gloo/watch_loop.h"

namespace fsdp::detail {

namespace {

constexpr Milliseconds kPoll{10};
constexpr Milliseconds kLastWords{300};  // of a peer whose connection has closed, on their way to the store
constexpr Milliseconds kProcessEnds{2000};  // from the end of its connections

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

}  // namespace

std::optional<GlooFault> GlooWatch::Loop::find_mismatch(const Wait& wait) {
  const GlooOperation& mine = wait.operation;
  for (int r = 0; r < info_.size; ++r) {
    if (r == info_.rank) continue;
    const auto told = parse_told(read(*store(), gloo_wait_key(r)));
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
      for (const std::string& key : {std::string(kGlooFault), gloo_left_key(wait.peer)})
        if (const std::string text = read(*info_.store, key); !text.empty())
          return report(GlooFault::from_text(text));
      if (is_dead(wait.peer))
        return report({.kind = CommFault::peer_died, .culprit = wait.peer, .reason = "its process has died"});
      std::this_thread::sleep_for(kPoll);
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
  fault.reason =
      "its process has died, or its host is gone: the store does not answer, and a connection to " +
      name_of(info_, wait.peer) + " ended (" + wait.closed + ")";
  return fault;
}

// At the deadline: the rank that is not in this operation is late.
void GlooWatch::Loop::find_late(const Wait& wait) {
  if (wait.operation.is_message())
    return report(late(wait, wait.peer, std::to_string(world_rank(info_, wait.peer))));
  if (!told_) tell(wait);
  if (const auto fault = find_mismatch(wait)) return report(*fault);
  std::vector<int> silent;
  std::string names;
  for (int r = 0; r < info_.size; ++r) {
    if (r == info_.rank) continue;
    const auto told = parse_told(read(*store(), gloo_wait_key(r)));
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

}  // namespace fsdp::detail
