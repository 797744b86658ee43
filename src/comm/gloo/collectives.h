// The collectives of a group connected by gloo. See Note [Exchanges].
//
// A rank sends, of a buffer of N bytes on W ranks: all_gather and reduce_scatter (W - 1) / W * N; all_reduce
// twice that, or (W - 1) * N below 32 KiB; broadcast at most log2(W) * N. Of the bytes that a host with L of
// the ranks sends, L * (W - L) / W * N go to other hosts in an all_gather or a reduce_scatter.
#pragma once

#include "comm/gloo/group.h"

namespace fsdp::detail {

WorkPtr gloo_all_gather(GlooGroup& group, const at::Tensor& slot, const at::Tensor& shard, OpInfo info);
// `scale` includes the division of an average.
WorkPtr gloo_reduce_scatter(GlooGroup& group, const at::Tensor& output, const at::Tensor& input, double scale,
                            OpInfo info);
WorkPtr gloo_all_reduce(GlooGroup& group, const at::Tensor& tensor, double scale, OpInfo info);
WorkPtr gloo_broadcast(GlooGroup& group, const at::Tensor& tensor, int root, OpInfo info);
WorkPtr gloo_barrier(GlooGroup& group, OpInfo info);

}  // namespace fsdp::detail
