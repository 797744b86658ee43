// What a World handle points to.
#pragma once

#include <fsdp/world.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <string>
#include <vector>

namespace fsdp::detail {

struct WorldState {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  c10::Device device{c10::kCPU};
  std::vector<Peer> peers;
  std::string source;
  c10::intrusive_ptr<::c10d::Store> store;
  std::atomic<int> groups{0};  // made so far; names the next group's keys
};

}  // namespace fsdp::detail
