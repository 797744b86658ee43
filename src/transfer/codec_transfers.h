// Gathers and reduces through a codec.
#pragma once

#include <fsdp/codec.h>
#include <fsdp/comm.h>

#include <string>

namespace fsdp::detail {

// A gather of encoded shards in flight.
struct EncodedGather {
  at::Tensor wires;  // [ranks, bytes]
  Work work;
};
EncodedGather start_gather(Comm& comm, const Codec& codec, const at::Tensor& shard, const std::string& label);
// Waits, and decodes into `slot`, which is memory of this rank alone.
void finish_gather(EncodedGather& gather, const Codec& codec, const at::Tensor& slot);

// output = the sum over ranks, along the tree of sums whatever the backend's own order is. If `output` and
// `input` have one size, the sum is of the whole inputs, else of this rank's part of them. `codec` encodes
// the parts that ranks send; null: as they are.
void sum_along_tree(Comm& comm, const at::Tensor& output, const at::Tensor& input, const std::string& label,
                    const Codec* codec = nullptr);

}  // namespace fsdp::detail
