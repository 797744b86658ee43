// Facts about a device that decide how the runtime works with it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace fsdp::detail {

struct Policy {
  // The host may wait for other ranks' answers in every step. Elsewhere it would wait for the device.
  bool asks_ranks_every_step = true;
  // The memory of a sum becomes the gradient shard. Otherwise shards come from a pool and are written to.
  bool adopts_sums = false;
  // The padding of gradient shards that no reduce fills is cleared.
  bool clears_padding = true;
  // Casts of whole shards run on a stream beside the user's.
  bool casts_on_side_stream = false;
  // Work is queued on streams, which may have to wait for each other.
  bool has_streams = false;
  // It has memory of its own, so state can be offloaded to the host's.
  bool can_offload = false;
  // Random numbers come from a generator of the device, besides the CPU's.
  bool has_generator = false;
  // LibTorch has kernels for it whose results depend on timing by default.
  bool has_unordered_kernels = false;
  // Number of elements to widen at once: on the CPU they stay in cache, elsewhere few large kernels are
  // better.
  int64_t elements_at_once = int64_t{1} << 15;
  // A released storage points at reserved addresses, which fault if a kernel reads them.
  bool reserves_addresses = true;
};

inline Policy policy_of(c10::Device device) {
  const bool host = device.is_cpu();
  return {.asks_ranks_every_step = host,
          .adopts_sums = !host,
          .clears_padding = host,
          .casts_on_side_stream = !host,
          .has_streams = !host,
          .can_offload = !host,
          .has_generator = !host,
          .has_unordered_kernels = !host,
          .elements_at_once = int64_t{1} << (host ? 15 : 24),
          .reserves_addresses = host};
}

}  // namespace fsdp::detail
