// GatherPath: how a region's whole values are made from the shards of its ranks.
//
// Note [Paths]
// A path is chosen when the model is sharded, and again when an outer model takes the unit over. The executor
// obeys the plan and knows no path: for every gather it finds memory for the slot, then calls start, finish
// and release, in this order. A new way to gather is a new file here and a line in shard/choose_paths.cpp.
// Two rules hold for every path. All ranks of the row call it in the same order: start() may be a collective.
// Operators read the compute dtype, maybe through a lossy codec; gather_master() is exact.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/codec.h>
#include <fsdp/comm.h>

#include <memory>
#include <optional>
#include <string>

namespace fsdp::detail {

class HostShard;
class SideStream;

// The ranks that fill the slot. Depends only on the model's actions, never on a rank's data.
enum class GatherFrom : uint8_t {
  row,            // all ranks that hold the region together
  reshard_group,  // some of them, which saved it after forward: Note [Reshard groups]
};

// The memory in which the slot of a region must lie.
enum class SlotMemory : uint8_t {
  none,   // no slot: the values have memory already
  arena,  // in the arena, or in memory allocated like the arena
  own,    // in memory of this rank alone
};

class GatherPath {
 public:
  virtual ~GatherPath() = default;

  virtual SlotMemory memory(GatherFrom from) const = 0;

  // Starts to fill `slot` [total], undefined if there is none. Returns the tensor that will have the values.
  virtual at::Tensor start(const at::Tensor& slot, GatherFrom from, const std::string& label) = 0;
  // Makes the current stream wait for the values.
  virtual void finish() = 0;
  // The values are not read any more. Waits for them first if finish() was not called.
  virtual void release() = 0;
  // As release(), after a failure: does not wait for operations in flight.
  virtual void drop() = 0;

  // Fills `whole` [total] with the shards of all ranks, in the shard dtype. With a `root`, only on that rank
  // of the row; elsewhere `whole` is empty. Blocks. Collective in the row.
  virtual void gather_master(const at::Tensor& whole, std::optional<int> root, const std::string& label) = 0;

  // Bytes in flight, the slot not counted.
  virtual int64_t wire_bytes() const { return 0; }

  // --- shared shards: other ranks may read this rank's shard in place
  virtual bool peers_read_shard() const { return false; }
  // Waits until no other rank reads this rank's shard.
  virtual void claim(const std::string& /*label*/) {}

  // --- reshard groups
  virtual bool saves_for_backward() const { return false; }
  // Called before release(): saves this rank's part of the values.
  virtual void save() {}
  virtual void drop_saved() {}
  virtual int64_t saved_bytes() const { return 0; }
};

using GatherPathPtr = std::unique_ptr<GatherPath>;

// The shard is the whole region, in the compute dtype.
GatherPathPtr gather_in_place(const at::Tensor& shard);
// The shard is the whole region, in another dtype. `side`: the stream of the cast; null: the current stream.
GatherPathPtr gather_by_cast(const at::Tensor& shard, std::shared_ptr<SideStream> side);
// An all-gather.
GatherPathPtr gather_over_row(const Comm& row, const at::Tensor& shard);
// `whole` is the memory in which all ranks' shards lie: Note [Shared shards].
GatherPathPtr gather_shared_shards(const Comm& row, const at::Tensor& shard, const at::Tensor& whole);
// An all-gather of shards encoded by `codec`.
GatherPathPtr gather_through_codec(const Comm& row, const at::Tensor& shard,
                                   std::shared_ptr<const Codec> codec);
// From forward to backward the ranks of `group` save the values that `whole_row` gathered.
GatherPathPtr gather_from_reshard_group(const Comm& group, bool shared_slots, GatherPathPtr whole_row);

// Uploads a shard from host memory. `row`: null if the shard is the whole region.
GatherPathPtr gather_from_host(const Comm* row, const at::Tensor& shard, std::shared_ptr<HostShard> host,
                               std::shared_ptr<SideStream> side);

// gather_master() for paths that send shards as they are.
void gather_exactly(Comm& row, const at::Tensor& shard, const at::Tensor& whole, std::optional<int> root,
                    const std::string& label);

}  // namespace fsdp::detail
