// Memory of CPU tensors, kept from one step to the next.
//
// Note [Host pool]
// A training step makes and drops the same tensors every time. malloc gives large ones back to the system,
// and the next step gets fresh pages, zeroed one by one at their first touch. Blocks are kept here instead,
// by size, and used again; those of 2 MiB and more lie on huge pages, so that kernels miss fewer address
// translations. What is kept is bounded: blocks in use and kept are together never more than half as much
// again as the most that was in use lately, and what was not used for longest goes first. What was whole only
// for a while, before it was sharded or in full_params(), is given back at its end.
#pragma once

#include <cstddef>

namespace fsdp::detail {

// LibTorch takes memory of CPU tensors from the pool from now on, in the whole process. Where the program has
// an allocator of its own in place that one stays, and under a sanitizer, which must see every block come and
// go, LibTorch's.
void use_host_pool();

// Gives back what is kept.
void trim_host_pool();

struct HostPoolStats {
  size_t in_use = 0;  // bytes of blocks that tensors hold
  size_t kept = 0;    // bytes of blocks that wait to be used again
  size_t peak = 0;    // the most in use lately
  size_t mapped = 0;  // blocks taken from the system so far
};

[[nodiscard]] HostPoolStats host_pool_stats();

}  // namespace fsdp::detail
