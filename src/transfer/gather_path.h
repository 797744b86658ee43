// How the whole values of a region come from the shards of its ranks.
//
// Note [Paths]
// A path is chosen when the model is sharded, and again when an outer model takes the unit over. The executor
// obeys the plan and knows no path: it finds memory for the slot, then calls start, finish and release, in
// this order, for every gather. A new way to gather is a new file here and a line in shard/choose_paths.cpp.
// Two rules hold for every path. All ranks of the row call it in the same order: start() may be a collective.
// What operators read lies in the compute dtype, maybe through a lossy codec; gather_master() is exact.
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

// Which ranks fill the slot. Depends on what the model did alone, never on what a rank holds.
enum class GatherFrom : uint8_t {
  row,            // all that hold the region between them
  reshard_group,  // some of them, which saved it after forward: Note [Reshard groups]
};

// Where the slot of a region must lie.
enum class SlotMemory : uint8_t {
  none,   // there is none: the values have a place already
  arena,  // in the arena, or in memory that is allocated as the arena is
  own,    // in memory of this rank alone
};

class GatherPath {
 public:
  virtual ~GatherPath() = default;

  virtual SlotMemory memory(GatherFrom from) const = 0;

  // Starts to fill `slot` [total], undefined where there is none. Returns where the values will be.
  virtual at::Tensor start(const at::Tensor& slot, GatherFrom from, const std::string& label) = 0;
  // The current stream waits for the values.
  virtual void finish() = 0;
  // The values are not read any more. Waits for them first where nobody has.
  virtual void release() = 0;
  // As release(), after a failure: what is in flight goes on without us.
  virtual void drop() = 0;

  // `whole` [total] gets the shards of all ranks in the dtype they are kept in. With a `root`, only of that
  // rank of the row: elsewhere `whole` is empty. Blocks. Collective in the row.
  virtual void gather_master(const at::Tensor& whole, std::optional<int> root, const std::string& label) = 0;

  // Of what is on its way besides the slot.
  virtual int64_t wire_bytes() const { return 0; }

  // --- shared shards: other ranks may read this rank's shard where it lies
  virtual bool peers_read_shard() const { return false; }
  // Waits until no other rank reads it.
  virtual void claim(const std::string& /*label*/) {}

  // --- reshard groups
  virtual bool saves_for_backward() const { return false; }
  // Before release(): this rank's part of the values is saved.
  virtual void save() {}
  virtual void drop_saved() {}
  virtual int64_t saved_bytes() const { return 0; }
};

using GatherPathPtr = std::unique_ptr<GatherPath>;

// The shard is the whole region, in the compute dtype.
GatherPathPtr gather_in_place(const at::Tensor& shard);
// The shard is the whole region, in another dtype. `side`: where it is cast; null: on the current stream.
GatherPathPtr gather_by_cast(const at::Tensor& shard, std::shared_ptr<SideStream> side);
// An all-gather.
GatherPathPtr gather_over_row(const Comm& row, const at::Tensor& shard);
// `whole` is the memory that all ranks' shards lie in: Note [Shared shards].
GatherPathPtr gather_shared_shards(const Comm& row, const at::Tensor& shard, const at::Tensor& whole);
// An all-gather of what `codec` makes of the shards.
GatherPathPtr gather_through_codec(const Comm& row, const at::Tensor& shard,
                                   std::shared_ptr<const Codec> codec);
// From forward to backward the ranks of `group` save what `whole_row` gathered.
GatherPathPtr gather_from_reshard_group(const Comm& group, bool shared_slots, GatherPathPtr whole_row);

// The shard lies in host memory, and is uploaded. `row`: null where it is the whole region.
GatherPathPtr gather_from_host(const Comm* row, const at::Tensor& shard, std::shared_ptr<HostShard> host,
                               std::shared_ptr<SideStream> side);

// What gather_master() is where shards are sent as they are.
void gather_exactly(Comm& row, const at::Tensor& shard, const at::Tensor& whole, std::optional<int> root,
                    const std::string& label);

}  // namespace fsdp::detail
