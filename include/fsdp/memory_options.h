// Options of fully_shard() that trade memory for time: backward prefetching and CPU offload.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp {

// Backward prefetching: the point at which backward gathers a unit, from the second step on.
enum class BackwardPrefetch : uint8_t {
  pre,   // while the previous unit computes its gradients: all-gather and compute overlap
  post,  // when it is needed, before the previous unit's gradients are reduced: gather and reduction overlap
  none,  // when it is needed, after the previous unit's gradients are reduced: nothing overlaps
};

// Parses "BACKWARD_PRE", "backward_post", "pre", "none", ..., in any case. Throws c10::Error for other names,
// listing these.
BackwardPrefetch parse_backward_prefetch(const std::string& name);

// CPU offload: state kept in pinned host memory while the model computes on a device. CPU ranks ignore it.
struct Offload {
  // Shards: parameters(), their gradients and moments are CPU tensors. A gather uploads the shards.
  bool params = false;
  // Gradient shards. If the parameters stay on the device, only fsdp::AdamW accepts these: LibTorch's
  // optimizers want gradients on the parameters' device.
  bool gradients = false;
  bool optimizer = false;  // moments of fsdp::AdamW, also if parameters stay on the device
};

}  // namespace fsdp
