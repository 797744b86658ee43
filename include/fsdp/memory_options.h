// Options of fully_shard() that trade memory for time: when units are gathered, and what is kept on the host.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp {

// When backward gathers a unit, from the second step on.
enum class BackwardPrefetch : uint8_t {
  pre,   // while the gradients of the unit before are computed: all-gather and compute overlap
  post,  // when it is needed, before the gradients of the unit before are reduced: the two overlap
  none,  // when it is needed, and they are reduced: nothing overlaps
};

// From "BACKWARD_PRE", "backward_post", "pre", "none", ..., in any case. Throws c10::Error for another,
// listing these.
BackwardPrefetch parse_backward_prefetch(const std::string& name);

// What is kept in pinned host memory while the model computes on a device. On CPU ranks it changes nothing.
struct Offload {
  // Shards: parameters() are CPU tensors, and so are their gradients and moments. A gather uploads them.
  bool params = false;
  // Gradient shards, also where parameters stay on the device: then for fsdp::AdamW, since LibTorch's
  // optimizers want gradients where parameters are.
  bool gradients = false;
  bool optimizer = false;  // moments of fsdp::AdamW, also where parameters stay on the device
};

}  // namespace fsdp
