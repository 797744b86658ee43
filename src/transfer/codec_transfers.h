// Gathers and reduces through a codec.
#pragma once

#include <fsdp/codec.h>
#include <fsdp/comm.h>

#include <string>

namespace fsdp::detail {

// A gather of encoded shards on its way.
struct EncodedGather {
  at::Tensor wires;  // [ranks, bytes]
  Work work;
};
EncodedGather start_gather(Comm& comm, const Codec& codec, const at::Tensor& shard, const std::string& label);
// Waits, and decodes into `slot`, which is this rank's own memory.
void finish_gather(EncodedGather& gather, const Codec& codec, const at::Tensor& slot);

// output = the sum over ranks of this rank's part of their inputs, or of all where the two have one size,
// along the tree of sums, whatever the backend does by itself. `codec`: of the parts on their way; null: as
// they are.
void sum_along_tree(Comm& comm, const at::Tensor& output, const at::Tensor& input, const std::string& label,
                    const Codec* codec = nullptr);

}  // namespace fsdp::detail
