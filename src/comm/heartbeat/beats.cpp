#include "comm/heartbeat/beats.h"

#include <algorithm>
#include <sstream>

#include "comm/await.h"
#include "comm/shm/memfd.h"
#include "launch/store_silence.h"

namespace fsdp::detail {

namespace {

constexpr const char* kPrefix = "fsdp/heartbeat/";

// Keys have the rank that is first on a host, which is shorter than a host's id.
std::string host_key(int first_rank, const char* what) {
  return kPrefix + std::to_string(first_rank) + "/" + what;
}

}  // namespace

Beats::Beats(const GroupInfo& world) : world_(world), far_(world.peers.size()), place_(world.peers.size()) {
  world_.heartbeat = nullptr;
  const std::string& here = world.peers[static_cast<size_t>(world.rank)].host_id;
  for (int r = 0; r < world.size; ++r) {
    const std::string& host = world.peers[static_cast<size_t>(r)].host_id;
    far_[static_cast<size_t>(r)] = host != here;
    if (host == here) {
      place_[static_cast<size_t>(r)] = near_.size();
      near_.push_back(r);
    } else if (std::find(hosts_.begin(), hosts_.end(), host) == hosts_.end()) {
      hosts_.push_back(host);
    }
  }
  MemfdSource source;
  const size_t bytes = near_.size() * sizeof(BeatPage);
  const std::string ticket = host_key(near_.front(), "memory");
  if (world.rank == near_.front()) {
    SegmentSource::Export made = source.create(bytes);
    segment_ = made.segment;
    keep_ = std::move(made.keep);
    publish_key(world_, ticket, made.ticket);
  } else {
    segment_ = source.attach(await_key(world_, ticket, near_.front()), bytes);
  }
  pages_ = reinterpret_cast<BeatPage*>(segment_->data());
  if (has_far()) {
    store_ = world.store->clone();
    limit_silence_of_clones();
  }
}

void Beats::publish() {
  std::string text;
  for (const int r : near_) text += beat_line(r, read_near(r));
  store_->set(host_key(near_.front(), "beats"), std::vector<uint8_t>(text.begin(), text.end()));
}

std::map<int, Beat> Beats::read_far() {
  std::map<int, Beat> found;
  for (const std::string& host : hosts_) {
    const auto first = std::find_if(world_.peers.begin(), world_.peers.end(),
                                    [&](const Peer& peer) { return peer.host_id == host; });
    const std::string key = host_key(first->rank, "beats");
    if (!store_->check({key})) continue;
    const auto bytes = store_->get(key);
    std::istringstream lines(std::string(bytes.begin(), bytes.end()));
    for (std::string line; std::getline(lines, line);)
      if (auto one = parse_beat_line(line); one && one->first < world_.size) found.insert(std::move(*one));
  }
  return found;
}

}  // namespace fsdp::detail
