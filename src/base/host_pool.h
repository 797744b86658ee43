// Memory of CPU tensors, kept from one step to the next.
//
// Note [Host pool]
// A training step makes and drops the same tensors every time. malloc gives large ones back to the system,
// and the next step gets fresh pages, zeroed one by one at first touch. The pool keeps such blocks instead,
// by size, and uses them again. Blocks of 2 MiB and more lie on huge pages, so that kernels miss fewer
// address translations. Kept memory is bounded: blocks in use and kept are together at most 1.5 times the
// recent peak in use, and the block unused for longest goes first. Memory that was unsharded only for a while
// (before sharding, or in full_params()) is given back at the end.
#pragma once

#include <cstddef>

namespace fsdp::detail {

// Makes LibTorch take memory of CPU tensors from the pool, in the whole process. An allocator that the
// program installed stays in place. Under a sanitizer, which must see every block come and go, LibTorch's own
// allocator stays.
void use_host_pool();

// Gives all kept blocks back to the system.
void trim_host_pool();

struct HostPoolStats {
  size_t in_use = 0;  // bytes of blocks that tensors hold
  size_t kept = 0;    // bytes of blocks that wait to be used again
  size_t peak = 0;    // the highest in_use lately
  size_t mapped = 0;  // blocks taken from the system so far
};

[[nodiscard]] HostPoolStats host_pool_stats();

}  // namespace fsdp::detail
