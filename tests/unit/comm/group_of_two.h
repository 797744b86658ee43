// Two ranks of one process, as their backends see them.
#pragma once

#include <unistd.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/backend.h"

namespace fsdp::detail {

// Rank `rank` of the group whose ranks meet in `store`. In the world they are 10 and 11.
inline GroupInfo group_of_two(const c10::intrusive_ptr<::c10d::Store>& store, int rank) {
  GroupInfo info;
  info.rank = rank;
  info.size = 2;
  for (const int world_rank : {10, 11})
    info.peers.push_back({.rank = world_rank, .hostname = "h", .host_id = "h", .pid = ::getpid()});
  info.store = store;
  return info;
}

}  // namespace fsdp::detail
