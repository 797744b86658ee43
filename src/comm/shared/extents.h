// Extents: parts of memory from allocate() that collectives use, and whether all ranks are done with them.
#pragma once

#include <fsdp/comm.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/owning_process.h"
#include "comm/shared/segment.h"

namespace fsdp::detail {

class RoundOp;

// A count in shared memory and the value it has once all ranks have finished with an extent.
struct Completion {
  std::atomic<uint32_t>* count;
  uint32_t target;

  bool reached() const { return static_cast<int32_t>(count->load() - target) >= 0; }
};

// One range of an allocation that collectives use.
struct Extent {
  size_t offset;
  size_t bytes;
  std::atomic<uint32_t>* finished;  // grows by one per rank and use
  uint32_t expected = 0;            // its value once nobody uses the extent any more
  bool held = false;  // gather: not released by this rank. reduce: not claimed since the last reduce
  uint64_t last_use = 0;
  std::weak_ptr<RoundOp> operation = {};  // the last use; expired once it is complete

  Completion completion() const { return {finished, expected}; }
  // Counts this rank as finished; true when it was the last.
  bool finish() { return finished->fetch_add(1) + 1 == expected; }
};

// Note [Shared slots]
// A slot allocated for gathers is ONE memory mapped by all ranks of the host. A gather means that every rank
// writes its shard once; nothing is copied out. So a rank may write its shard only when every rank has
// released the slot's old contents. If shards lie in the slot permanently, a gather copies nothing, and a
// rank waits before it changes its own shard. Memory for reduces is W blocks, one per rank: a rank writes its
// own block and reads its part of all blocks. Each range used gets a counter inside the allocation. Counters
// are given out in order of first use, which is the same on every rank because collectives are. A use adds W
// to the expected count; a rank that has finished adds one.
class Allocation {
 public:
  // `number`: its position in the group's order of allocations, from 1; the same on every rank.
  Allocation(SegmentPtr segment, MemoryUse use, size_t bytes, int rank, int size, uint32_t number);

  // [counters][block] for gathers, [counters][block x W] for reduces.
  static size_t segment_bytes(MemoryUse use, size_t bytes, int size);

  MemoryUse use() const { return use_; }
  char* block(int rank) const;
  char* own() const { return block(rank_); }
  size_t bytes() const { return bytes_; }
  uint32_t number() const { return number_; }

  // Starts a use of [offset, offset + bytes) by all ranks. `before`: completions that must be reached before
  // any rank writes there.
  Extent& begin_use(size_t offset, size_t bytes, std::vector<Completion>& before);
  Extent* find(size_t offset, size_t bytes);
  std::vector<Extent*> overlapping(size_t offset, size_t bytes);
  // Counts this rank as finished with all it still holds: it leaves, or has dropped the memory.
  void release_all();

 private:
  Extent& extent(size_t offset, size_t bytes, std::vector<Completion>& before);

  SegmentPtr segment_;
  MemoryUse use_;
  size_t bytes_;
  size_t stride_;
  int rank_;
  int size_;
  uint32_t number_;
  uint64_t uses_ = 0;
  std::vector<std::unique_ptr<Extent>> extents_;
};
using AllocationPtr = std::shared_ptr<Allocation>;

// The live allocations of one rank, found by address. From any thread, since any thread may drop tensors.
class AllocationTable {
 public:
  void add(const AllocationPtr& allocation);
  void remove(const void* own);
  // The allocation that holds all of [data, data + bytes) in this rank's block, or null.
  AllocationPtr find(const void* data, size_t bytes) const;
  void release_all() const;

 private:
  OwningProcess owner_;  // see Note [Forked children]
  mutable std::mutex mutex_;
  std::map<const char*, AllocationPtr> by_address_;
};

}  // namespace fsdp::detail
