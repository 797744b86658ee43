// A unit at run time: its shards, and the module's parameters that are views of what is gathered.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/insight.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layout/flat_layout.h"
#include "plan/plan.h"
#include "runtime/streams.h"
#include "transfer/flat.h"
#include "transfer/gather_path.h"
#include "transfer/reduce_path.h"
#include "watch/address_range.h"
#include "watch/owner.h"
#include "watch/poison.h"
#include "watch/tag.h"

namespace fsdp::detail {

struct Unit;
class Engine;

// One region of the flat layout: a dtype, trainable or frozen.
struct UnitRegion final : WatchedRegion {
  Unit* unit = nullptr;
  RegionLayout layout;
  at::ScalarType master = at::kFloat;         // of the shard
  at::ScalarType gradient_type = at::kFloat;  // of the gradient shard
  at::ScalarType compute = at::kFloat;        // of what is gathered
  at::ScalarType reduce = at::kFloat;         // of gradients on the way
  bool in_place = false;                      // the shard is all there is: it needs no slot

  at::Tensor shard;  // [shard_numel]
  at::Tensor
      gradient;        // [shard_numel] from the first reduce of a backward to its end: Note [Gradient shards]
  bool shown = false;  // slices' .grad() are its slices
  bool summed = false;  // it holds a sum of this backward
  at::Tensor slot;      // [total] while gathering or gathered: where the values are
  at::Tensor buffer;    // [total] while gradients arrive
  GatherPathPtr gather_path;
  ReducePathPtr reduce_path;
  c10::Storage storage;  // what the parameters are views of
  AddressRange nowhere;  // where it points while released, on the CPU
  int64_t version = 0;   // of the shard, when last gathered
  TagHandle parameter_tag, shard_tag, gradient_tag;
  c10::weak_intrusive_ptr<c10::StorageImpl> last_gradient{c10::intrusive_ptr<c10::StorageImpl>()};

  WatchedUnit& owner() const override;
  std::string name_at(int64_t offset) const override;
  bool is_permanent() const override { return in_place; }
  const c10::Storage& view_storage() const override { return storage; }

  int64_t slot_bytes() const;
  int64_t buffer_bytes() const;
};

struct UnitParam {
  Unit* unit = nullptr;
  Placement place;
  std::vector<std::string> names;  // tied parameters have several
  std::vector<int64_t> strides;    // dense, in the module's order: channels last stays so
  bool requires_grad = true;       // as the module said when the model was last called

  at::Tensor tensor;          // the module's own
  c10::Storage poison;        // what it holds while released
  at::Tensor slice;           // of the shard: what optimizers see
  at::Tensor gradient_slice;  // of the gradient shard; undefined with it
  at::Tensor trap;  // stands in the module's .grad(): optimizers on the module are answered in words
  std::shared_ptr<torch::autograd::Node> accumulator;
  bool arrived = false;  // it had a gradient at some time
  bool fired = false;    // its gradient is in the buffer
  bool fresh = false;    // it arrived in this backward and is not reduced yet
  bool used = false;     // it arrived, on this rank, since gradients were last reduced
  bool touched = false;  // some rank used it in this step, in reproducible mode
  bool reduced = false;  // it was used, as far as a reduce of this backward knows
  bool hooked = false;   // autograd tells us of its gradients

  UnitRegion& region() const;
  // The module's tensor sees `storage`, which has the layout of the region.
  void attach(const c10::Storage& storage, at::ScalarType type) const;
  // The module's tensor is on the device of `like`, and watched exactly there where the shards are.
  void move_to(const at::Tensor& like) const;
  // Its part of a flat tensor, in its own shape.
  at::Tensor view_of(const at::Tensor& flat) const;
};

struct Unit final : WatchedUnit, std::enable_shared_from_this<Unit> {
  explicit Unit(c10::Device device) : readers(device) {}

  Engine* engine = nullptr;
  UnitId id = 0;
  std::string name;
  UnitLayout layout;
  bool keep = false;          // from forward to backward
  bool outside = false;       // its slot is private memory, not part of the arena
  int part_ranks = 0;         // that keep it between them from forward to backward; 0: none
  bool read_backward = true;  // as far as the plan knows
  bool average = true;
  std::vector<std::unique_ptr<UnitRegion>> regions;
  std::vector<std::unique_ptr<UnitParam>> params;

  UnitState state = UnitState::sharded;
  int64_t offset = -1;  // of its slot in the arena; -1: none, or outside
  Phase last_read = Phase::forward;
  StreamSet readers;      // that wait for its gather
  bool summoned = false;  // whole, in a full_params() scope
  int pins = 0;           // operators in flight that read it
  bool written = false;   // an operator wrote to its shards since they were gathered
  bool lent = false;      // other ranks may read its shards where they lie
  int64_t gathers = 0;
  int64_t reduces = 0;
  bool open = false;            // gradients have arrived that are not reduced
  int64_t planned_buffer = -1;  // where in the gradient arena they are to arrive; -1: in memory of its own

  // As the observer sees it: watched_unit.cpp.
  std::recursive_mutex& mutex() override;
  bool may_read() const override;
  bool is_sharded() const override { return layout.ranks > 1; }
  bool is_gathered() const override { return state == UnitState::gathered; }
  void pin() override { ++pins; }
  void unpin() override { --pins; }
  void use() override;
  void before_write() override;
  void check_write() const override;
  std::exception_ptr explain(const std::exception_ptr& error) override;
  Comm* batch_norm_ranks() override;

  bool in_place() const;  // needs no slot at all
  int64_t slot_bytes() const;
  int64_t arena_bytes() const { return outside ? 0 : slot_bytes(); }
  int64_t buffer_bytes() const;
  bool complete() const;  // every gradient has arrived
  bool stale() const;     // shards were written since they were gathered

  // Lets the parameters see `slot` of each region, or nothing.
  void bind();
  void unbind();
  // Waits until no rank reads the shards where they lie, unless this one does.
  void claim_shards();
  bool lends() const;     // other ranks read its shards where they lie
  bool can_keep() const;  // a part of the row may keep it: Note [Parts of a row]
  int64_t kept_bytes() const;
  // Whether its slot must be memory of this rank alone.
  bool needs_own_slot(GatherFrom from) const;
  // The next gather brings the values of now.
  void note_written();
  // An operator is about to write to a shard. Version counters do not tell: optimizers write through data().
  void note_write();
};

// The region of a tag that has one.
inline UnitRegion* region_of(const Tag& tag) { return static_cast<UnitRegion*>(tag.region); }

// The regions one after the other in `memory` [bytes], which begins at `offset`.
void carve(const Unit& unit, const at::Tensor& memory, int64_t offset, at::Tensor UnitRegion::*part,
           at::ScalarType UnitRegion::*type);

}  // namespace fsdp::detail
