// A unit at run time: its shards, and the module's parameters that are views of what is gathered.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/insight.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layout/unit_spec.h"
#include "plan/plan.h"
#include "runtime/streams.h"
#include "transfer/flat.h"
#include "transfer/gather_path.h"
#include "transfer/host_memory.h"
#include "transfer/host_shard.h"
#include "transfer/reduce_path.h"
#include "watch/address_range.h"
#include "watch/owner.h"
#include "watch/poison.h"
#include "watch/tag.h"

namespace fsdp::detail {

struct Unit;
class Engine;

inline at::ScalarType scalar_type(ElementType type) { return static_cast<at::ScalarType>(type.code); }
ElementType element_type(at::ScalarType type);

// A region's gradients, from the first that arrives to the slices' .grad(). Written by Gradients and
// GradientShards alone.
struct RegionGradient {
  at::Tensor buffer;   // [total] while gradients arrive
  at::Tensor shard;    // [shard_numel] from the first reduce of a backward to its end: Note [Gradient shards]
  bool shown = false;  // slices' .grad() are its slices
  bool summed = false;                 // it holds a sum of this backward
  std::optional<c10::Stream> made_on;  // whose memory it is, until another stream is known to use it
  at::Tensor row_sum;  // [shard_numel] what no_sync({.rows_only = true}) keeps in the row; else undefined
  TagHandle tag;
  c10::weak_intrusive_ptr<c10::StorageImpl> last{c10::intrusive_ptr<c10::StorageImpl>()};
};

// One region of the flat layout: a dtype, trainable or frozen.
struct UnitRegion final : WatchedRegion {
  UnitRegion(Unit& unit_, RegionSpec& spec_) : unit(&unit_), spec(spec_) {}

  Unit* unit;
  RegionSpec& spec;  // of the unit's
  // Made when the model is sharded.
  at::Tensor shard;                 // [shard_numel]
  c10::Storage storage;             // what the parameters are views of
  at::Tensor home;                  // [0] of the device and key that parameters have
  std::shared_ptr<HostShard> host;  // where the shard is in host memory
  AddressRange nowhere;             // where it points while released, on the CPU
  GatherPathPtr gather_path;
  ReducePathPtr reduce_path;
  TagHandle parameter_tag, shard_tag;
  std::vector<TagHandle> moment_tags;
  std::shared_ptr<HostMemory> host_memory;  // for moments that are not on the device
  // The executor's.
  at::Tensor slot;      // [total] while gathering or gathered: where the values are
  int64_t version = 0;  // of the shard, when last gathered

  RegionGradient gradient;

  at::ScalarType master() const { return scalar_type(spec.master); }
  at::ScalarType compute() const { return scalar_type(spec.compute); }
  at::ScalarType reduce() const { return scalar_type(spec.reduce); }
  at::ScalarType gradient_type() const { return scalar_type(spec.gradient); }

  WatchedUnit& owner() const override;
  std::string name_at(int64_t offset) const override;
  bool is_permanent() const override { return spec.in_place(); }
  const c10::Storage& view_storage() const override { return storage; }
};

// Note [The state of a gradient]
// A gradient arrives from autograd in its unit's buffer and is `fresh` until that backward ends or its unit
// is reduced. One that no reduce took, under no_sync(), is `kept` then: the next that arrives is added to it.
// A unit is complete when all its gradients are fresh. A reduce takes them out of the buffer.
//
// Whether a slice gets a .grad() depends on all ranks, since an expert may have seen no token here: `here`
// says that this rank had a gradient since the last that was reduced, `somewhere` that some rank had one, as
// far as the reduces since slices were given gradients know. In reproducible mode that is a whole step.
struct ParamGradient {
  enum class Place : uint8_t { none, kept, fresh };

  Place place = Place::none;  // in the buffer
  bool here = false;
  bool somewhere = false;
  bool in_row = false;  // some rank's is in the row's sum that no_sync() keeps
  bool news = false;    // the slice's .grad() is of this backward, and on_gradient() was not told
  bool ever = false;    // the module's .grad() has held the trap
  at::Tensor slice;     // of the gradient shard; undefined with it

  bool in_buffer() const { return place != Place::none; }
  bool fresh() const { return place == Place::fresh; }
};

struct UnitParam {
  Unit* unit = nullptr;
  Placement place;
  std::vector<std::string> names;  // tied parameters have several
  std::vector<int64_t> strides;    // dense, in the module's order: channels last stays so
  bool requires_grad = true;       // as module and slice said when the model was last called

  at::Tensor tensor;    // the module's own
  c10::Storage poison;  // what it holds while released
  at::Tensor slice;     // of the shard: what optimizers see
  at::Tensor trap;      // stands in the module's .grad(): optimizers on the module are answered in words
  std::shared_ptr<torch::autograd::Node> accumulator;
  bool hooked = false;   // autograd tells us of its gradients
  bool arrived = false;  // its gradient has, in the backward in progress; written by UnitPhases

  ParamGradient gradient;  // written by Gradients and the StepMode

  UnitRegion& region() const;
  // Whether it is to be trained from the next call on: the module's tensor or the slice may say otherwise
  // than before.
  bool wants_grad() const;
  // The module's tensor sees `storage`, which has the layout of the region.
  void attach(const c10::Storage& storage, at::ScalarType type) const;
  // The module's tensor is on the device of `like`, and watched exactly there where the shards are.
  void move_to(const at::Tensor& like) const;
  // Its part of a flat tensor, in its own shape.
  at::Tensor view_of(const at::Tensor& flat) const;
};

// A unit's slot. Written by the executor alone, but for `is_private`.
struct UnitSlot {
  explicit UnitSlot(c10::Device device) : readers(device) {}

  bool is_private = false;  // in memory of this rank alone, not in the arena
  UnitState state = UnitState::sharded;
  int64_t offset = -1;  // in the arena; -1: none, or elsewhere
  StreamSet readers;    // that wait for the gather
  int64_t gathers = 0;
};

// A unit's gradients on their way. Written by Gradients alone.
struct UnitGradient {
  bool held = false;   // no_sync() keeps them on this rank
  bool open = false;   // some have arrived that are not reduced
  int64_t place = -1;  // where in the gradient arena they are to arrive; -1: in memory of their own
  int64_t reduces = 0;
};

// Units that are gathered when another one is used.
using UnitList = std::vector<std::weak_ptr<Unit>>;

struct Unit final : WatchedUnit, std::enable_shared_from_this<Unit> {
  explicit Unit(c10::Device device) : slot(device) {}

  Engine* engine = nullptr;
  UnitId id = 0;
  UnitSpec spec;
  std::vector<std::unique_ptr<UnitRegion>> regions;
  std::vector<std::unique_ptr<UnitParam>> params;
  std::optional<UnitList> forward_prefetch, backward_prefetch;  // not set: as the policy says

  UnitSlot slot;
  UnitGradient gradient;
  bool cast_inputs = true;  // of its operators, to its compute dtype: Note [Inputs of units]
  std::optional<at::ScalarType> output = {};  // of its operators, where its own precision says so
  UnitPhase phase = UnitPhase::idle;          // written by UnitPhases alone
  Phase last_read = Phase::forward;
  bool read_backward = true;    // as far as the plan knows
  int pins = 0;                 // operators in flight that read it
  int no_sync_scopes = 0;       // that live
  bool written = false;         // an operator wrote to its shards since they were gathered
  bool peers_may_read = false;  // other ranks may read its shards where they lie

  const std::string& name() const { return spec.layout.name; }
  int ranks() const { return spec.layout.ranks; }  // that hold it between them

  // As the observer sees it: watched_unit.cpp.
  std::recursive_mutex& mutex() override;
  bool may_read() const override;
  bool is_sharded() const override { return ranks() > 1; }
  bool is_gathered() const override { return slot.state == UnitState::gathered; }
  void pin() override { ++pins; }
  void unpin() override { --pins; }
  void use() override;
  void before_write() override;
  void before_moment_write() override;
  void before_touch() override;
  void check_write() const override;
  std::exception_ptr explain(const std::exception_ptr& error) override;
  bool casts_inputs() const override { return cast_inputs; }
  std::optional<at::ScalarType> output_type() const override { return output; }
  Comm* batch_norm_ranks() override;

  bool in_place() const;  // needs no slot at all
  int64_t arena_bytes() const { return slot.is_private ? 0 : spec.slot_bytes(); }
  int64_t planned_buffer_bytes() const;  // of its gradients, where they have a planned place
  bool complete() const;                 // every gradient has arrived
  bool stale() const;                    // shards were written since they were gathered

  // Lets the parameters see `slot` of each region, or nothing.
  void bind();
  void unbind();
  // Waits until no rank reads the shards where they lie, unless this one does.
  void claim_shards();
  bool peers_read_shard() const;    // other ranks read its shards where they lie
  bool saves_for_backward() const;  // a reshard group may: Note [Reshard groups]
  int64_t saved_bytes() const;
  // Whether its slot must be memory of this rank alone.
  bool needs_own_slot(GatherFrom from) const;
  // The next gather brings the values of now.
  void note_written();
  // An operator is about to write to a shard. Version counters do not tell: optimizers write through data().
  void note_write();
  // Somebody has promised to write to the shards, and whoever reads them waits.
  void note_promised_write();
};

// The region of a tag, or null.
inline UnitRegion* region_of(const Tag& tag) { return static_cast<UnitRegion*>(tag.region.load()); }

// Slots, or gradient buffers, of the regions one after the other in `memory` [bytes], from `offset` on.
void carve_slots(const Unit& unit, const at::Tensor& memory, int64_t offset);
void carve_buffers(const Unit& unit, const at::Tensor& memory, int64_t offset);

}  // namespace fsdp::detail
