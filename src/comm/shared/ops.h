// The collectives as rounds. Byte pointers and sizes only; the caller keeps tensors alive.
#pragma once

#include "comm/shared/extents.h"
#include "comm/shared/rounds.h"

namespace fsdp::detail {

// The bytes of a tensor.
struct Bytes {
  char* data = nullptr;
  size_t size = 0;
};
inline Bytes bytes_of(const at::Tensor& tensor) {
  return {static_cast<char*>(tensor.data_ptr()), tensor.nbytes()};
}

RoundOpPtr make_barrier_op();
// All ranks copy through the banks.
RoundOpPtr make_gather_op(const ControlView& view, int rank, Bytes slot, const char* shard);
RoundOpPtr make_reduce_scatter_op(const ControlView& view, int rank, char* output, Bytes input, DType type,
                                  double scale);
RoundOpPtr make_all_reduce_op(const ControlView& view, int rank, Bytes tensor, DType type, double scale);
RoundOpPtr make_broadcast_op(const ControlView& view, int rank, Bytes tensor, int root);
// Nothing is copied out: see Note [Shared slots].
RoundOpPtr make_shared_gather_op(char* part, const char* shard, size_t bytes, std::vector<Completion> before);
RoundOpPtr make_shared_reduce_scatter_op(Gate& gate, AllocationPtr allocation, Extent& extent, char* output,
                                         DType type, double scale);

}  // namespace fsdp::detail
