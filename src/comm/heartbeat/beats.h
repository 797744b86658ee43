// Beats: the pages of this host's ranks, in shared memory, and the beats of other hosts, through the store.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/backend.h"
#include "comm/heartbeat/beat.h"
#include "comm/shared/segment.h"

namespace fsdp::detail {

// Note [Beats of other hosts]
// The lowest rank of a host that is not silent writes the beats of all its host's ranks into the store, twice
// a second, under one key. A host reads the keys of others only while one of its own ranks waits. The store
// is reached over a connection of its own, because a rank may block in the one of its world.
//
// Threads: own_page() and near() any; the rest, the heartbeat's thread.
class Beats {
 public:
  // Finds the memory of this host through `world.store`. Collective over `world`, which has all ranks. Throws
  // RendezvousError if the first rank of this host does not come, and Error if its memory cannot be mapped.
  explicit Beats(const GroupInfo& world);

  BeatPage& own_page() { return page(world_.rank); }
  // The ranks of this host.
  const std::vector<int>& near() const { return near_; }
  // By rank: on another host.
  const std::vector<bool>& far() const { return far_; }
  bool has_far() const { return near_.size() < far_.size(); }
  Beat read_near(int rank) const { return page(rank).read(); }

  // Writes the beats of this host's ranks for the other hosts.
  void publish();
  // The beats of other hosts' ranks, as last published. Empty if the store does not answer.
  std::map<int, Beat> read_far();

 private:
  BeatPage& page(int rank) const { return pages_[place_[static_cast<size_t>(rank)]]; }

  GroupInfo world_;
  c10::intrusive_ptr<::c10d::Store> store_;  // for publish() and read_far()
  std::vector<int> near_;
  std::vector<bool> far_;
  std::vector<size_t> place_;       // by rank: of its page
  std::vector<std::string> hosts_;  // ids of the other hosts
  SegmentPtr segment_;
  std::shared_ptr<void> keep_;  // of the first rank, which waits for nobody to attach
  BeatPage* pages_ = nullptr;
};

}  // namespace fsdp::detail
