#include "comm/await.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/process_watch.h"
#include "comm/heartbeat/heartbeat.h"
#include "comm/heartbeat/wait_words.h"

namespace fsdp::detail {

namespace {

[[noreturn]] void throw_store_gone(const GroupInfo& info, const std::string& doing,
                                   const std::exception& error) {
  const std::string text = error.what();
  throw RendezvousError(name_of(info, info.rank) + " lost the store while " + doing +
                        "; what served it has ended (" + text.substr(0, text.find('\n')) + ")");
}

// True if the process of `rank` is gone; only known for ranks of this host.
bool is_gone(const GroupInfo& info, int rank) {
  const Peer& peer = info.peers[static_cast<size_t>(rank)];
  const Peer& self = info.peers[static_cast<size_t>(info.rank)];
  if (peer.host_id != self.host_id || peer.pid == self.pid) return false;
  return ProcessWatch({peer.pid}).dead(0);
}

int group_rank(const GroupInfo& info, int world_rank) {
  const auto found = std::find_if(info.peers.begin(), info.peers.end(),
                                  [&](const Peer& peer) { return peer.rank == world_rank; });
  return found == info.peers.end() ? info.rank : static_cast<int>(found - info.peers.begin());
}

// The pause until the store is asked again. It grows with the wait: a short wait ends at once, and a long one
// sends few requests.
Clock::duration pause_after(Clock::duration waited) {
  return std::clamp<Clock::duration>(waited / 16, std::chrono::microseconds(200), Milliseconds{20});
}

// See Note [Activities].
std::string doing_meanwhile(const GroupInfo& info, int rank) {
  const Peer& peer = info.peers[static_cast<size_t>(rank)];
  const bool same_host = peer.host_id == info.peers[static_cast<size_t>(info.rank)].host_id;
  const std::string text = info.activity->of_peer(peer.rank);
  const std::string state = same_host ? process_state(peer.pid) : "";
  return (text.empty() ? "" : "; it " + text) + (state.empty() ? "" : "; its process is " + state);
}

}  // namespace

std::string name_of(const GroupInfo& info, int group_rank) {
  const Peer& peer = info.peers[static_cast<size_t>(group_rank)];
  return "rank " + std::to_string(peer.rank) + " (host " + peer.hostname + ", pid " +
         std::to_string(peer.pid) + ")";
}

std::string await_key(const GroupInfo& info, const std::string& key, int from, const std::string& doing,
                      const std::function<void()>& look) {
  const WaitScope scope(info);
  const auto deadline = deadline_after(info.options.timeout);
  const auto start = Clock::now();
  try {
    while (!info.store->check({key})) {
      if (const auto fault = info.activity->new_fault())
        throw RendezvousError("while " + doing + ", a group of the ranks failed: " +
                              name_of(info, group_rank(info, fault->culprit)) + ": " + fault->reason);
      // Checked after the key: a rank may write its key and end.
      if (is_gone(info, from) && !info.store->check({key}))
        throw RendezvousError(name_of(info, from) + " died while " + doing);
      if (look) look();
      if (Clock::now() >= deadline)
        throw RendezvousError(name_of(info, from) + " did not come within " +
                              std::to_string(info.options.timeout.count()) + " ms while " + doing +
                              doing_meanwhile(info, from));
      std::this_thread::sleep_for(pause_after(Clock::now() - start));
    }
    const auto bytes = info.store->get(key);
    return {bytes.begin(), bytes.end()};
  } catch (const RendezvousError&) {
    throw;
  } catch (const std::exception& error) {
    throw_store_gone(info, doing, error);
  }
}

void publish_key(const GroupInfo& info, const std::string& key, const std::string& value) {
  try {
    info.store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw_store_gone(info, "making a group", error);
  }
}

}  // namespace fsdp::detail
