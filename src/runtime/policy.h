// Facts about a device that decide how the runtime works with it.
#pragma once

#include <c10/core/Device.h>

namespace fsdp::detail {

struct Policy {
  // The host may wait for an answer of other ranks in every step. Elsewhere it would wait for the device.
  bool asks_ranks_every_step = true;
  // A sum's memory becomes the gradient shard. Otherwise gradient shards come from a pool and are written to.
  bool adopts_sums = false;
  // Gradient shards that no reduce fills have their padding cleared.
  bool clears_padding = true;
  // Casts of whole shards run on a stream beside the user's.
  bool casts_aside = false;
  // A released storage points at reserved addresses, which fault where a kernel reads them.
  bool reserves_addresses = true;
};

inline Policy policy_of(c10::Device device) {
  const bool host = device.is_cpu();
  return {.asks_ranks_every_step = host,
          .adopts_sums = !host,
          .clears_padding = host,
          .casts_aside = !host,
          .reserves_addresses = host};
}

}  // namespace fsdp::detail
