// ReducePath: how a region's gradients are reduced, from the ranks' buffers to this rank's part of the sum.
//
// Chosen together with the gather paths: see Note [Paths]. A path does not decide when to reduce or what to
// do with the sum.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/codec.h>
#include <fsdp/comm.h>

#include <memory>
#include <string>

namespace fsdp::detail {

class ReducePath {
 public:
  virtual ~ReducePath() = default;

  // True if there is no rank to reduce with: gradients may stay where autograd put them.
  virtual bool alone() const { return false; }
  // True if the sum ends up in the buffer: the region is whole on every rank, or there is one rank.
  virtual bool in_buffer() const { return false; }
  // True if the buffer lies at a planned offset in memory that the ranks of the row share.
  virtual bool shares_buffer() const { return !in_buffer(); }
  // Starts to reduce `buffer` [total], which must not be written to before the work is done. `sum`
  // [shard_numel] gets this rank's part of the sum, or average, over the ranks. Both have the reduce dtype;
  // if in_buffer(), they are one tensor. Collective.
  virtual Work start(const at::Tensor& sum, const at::Tensor& buffer, const std::string& label) = 0;

  // Rows of a mesh: cross() follows start(), whose work was waited for. Collective.
  virtual bool crosses() const { return false; }
  virtual Work cross(const at::Tensor& /*sum*/, const std::string& /*label*/) { return {}; }
};

using ReducePathPtr = std::unique_ptr<ReducePath>;

// One rank: the buffer is the sum.
ReducePathPtr reduce_alone();
// The same if the sum does not stay in the device's memory: gradients are first collected in a buffer.
ReducePathPtr reduce_alone_in_buffer();
// An all-reduce, for a region that is whole on every rank.
ReducePathPtr reduce_whole(const Comm& all, ReduceOp op);
// A reduce-scatter.
ReducePathPtr reduce_over_row(const Comm& row, ReduceOp op);
// Along the tree of sums, on parts encoded by `codec`. Done when start() returns: decoding needs all parts.
ReducePathPtr reduce_through_codec(const Comm& row, ReduceOp op, std::shared_ptr<const Codec> codec);
// Sums along the tree of sums: Note [Reproducible]. Over the row and then over `column`, which may be null,
// or over all ranks for a region that is whole on every rank. Done when start() returns.
ReducePathPtr reduce_along_tree(const Comm& row, const Comm* column);
ReducePathPtr reduce_whole_along_tree(const Comm& all);
// All-reduces the result of `inside_row` over the column of the mesh.
ReducePathPtr reduce_across_rows(const Comm& column, ReduceOp op, ReducePathPtr inside_row);

}  // namespace fsdp::detail
