// Unit: a unit at run time, with its shards and the module's parameters, views of the gathered values.
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

// A region's gradients, from the first arrival to the slices' .grad(). Written by Gradients and
// GradientShards only.
struct RegionGradient {
  at::Tensor buffer;    // [total] while gradients arrive
  at::Tensor shard;     // [shard_numel] from a backward's first reduce to its end: Note [Gradient shards]
  bool shown = false;   // the slices' .grad() are its slices
  bool summed = false;  // the shard holds a sum of this backward
  std::optional<c10::Stream> made_on;  // its stream, until another stream is known to use it
  at::Tensor row_sum;  // [shard_numel] kept in the row by no_sync({.rows_only = true}); else undefined
  TagHandle tag;
  c10::weak_intrusive_ptr<c10::StorageImpl> last{c10::intrusive_ptr<c10::StorageImpl>()};
};

// One region of the flat layout: a dtype, trainable or frozen.
struct UnitRegion final : WatchedRegion {
  UnitRegion(Unit& unit_, RegionSpec& spec_) : unit(&unit_), spec(spec_) {}

  Unit* unit;
  RegionSpec& spec;  // part of the unit's spec
  // Made when the model is sharded:
  at::Tensor shard;                 // [shard_numel]
  c10::Storage storage;             // the parameters are views of it
  at::Tensor home;                  // [0] empty tensor with the parameters' device and keys
  std::shared_ptr<HostShard> host;  // set if the shard is in host memory
  AddressRange nowhere;             // address of the storage while released, on the CPU
  GatherPathPtr gather_path;
  ReducePathPtr reduce_path;
  TagHandle parameter_tag, shard_tag;
  std::vector<TagHandle> moment_tags;
  std::shared_ptr<HostMemory> host_memory;  // for moments that are not on the device
  // Written by the executor:
  at::Tensor slot;      // [total] while gathering or gathered: the values
  int64_t version = 0;  // of the shard, at the last gather

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
// A gradient arrives from autograd in its unit's buffer. It is `fresh` until that backward ends or its unit
// is reduced. A gradient that no reduce took, under no_sync(), is then `kept`: the next one that arrives is
// added to it. A unit is complete when all its gradients are fresh. A reduce takes them out of the buffer.
//
// A slice gets a .grad() if any rank has a gradient, since an expert may have seen no token on this rank.
// `used_locally`: this rank had a gradient since the last reduced one. `used_by_any_rank`: any rank had one,
// as far as the reduces since slices last got gradients know. In reproducible mode that is a whole step.
struct ParamGradient {
  enum class State : uint8_t { none, kept, fresh };

  State state = State::none;  // in the buffer
  bool used_locally = false;
  bool used_by_any_rank = false;
  bool in_row = false;            // the row's sum that no_sync() keeps has some rank's gradient
  bool callback_pending = false;  // on_gradient() is still to be called for the slice's .grad()
  bool ever = false;              // the module's .grad() has held the trap
  at::Tensor slice;               // slice of the gradient shard; undefined if that is

  bool in_buffer() const { return state != State::none; }
  bool fresh() const { return state == State::fresh; }
};

struct UnitParam {
  Unit* unit = nullptr;
  Placement placement;
  std::vector<std::string> names;  // tied parameters have several
  std::vector<int64_t> strides;    // dense, in the module's order: channels last stays so
  bool requires_grad = true;       // as module or slice said at the last call of the model

  at::Tensor tensor;    // the module's own
  c10::Storage poison;  // held by the tensor while released
  at::Tensor slice;     // slice of the shard, for optimizers
  at::Tensor trap;      // the module's .grad(): optimizers on the module get an error message
  std::shared_ptr<torch::autograd::Node> accumulator;
  bool hooked = false;   // autograd calls our hooks for its gradients
  bool arrived = false;  // its gradient has arrived in the current backward; written by UnitPhases

  ParamGradient gradient;  // written by Gradients and the StepMode

  UnitRegion& region() const;
  // True if it is to be trained from the next call on: requires_grad of the module's tensor or of the slice
  // may have changed.
  bool wants_grad() const;
  // Makes the module's tensor a view of `storage`, which has the layout of the region.
  void attach(const c10::Storage& storage, at::ScalarType type) const;
  // Moves the module's tensor to the device of `like`; it is watched exactly there where the shards are.
  void move_to(const at::Tensor& like) const;
  // The parameter's part of a flat tensor, in its own shape.
  at::Tensor view_of(const at::Tensor& flat) const;
};

// A unit's slot. Written by the executor only, except `is_private`.
struct UnitSlot {
  explicit UnitSlot(c10::Device device) : readers(device) {}

  bool is_private = false;  // memory of this rank alone, not in the arena
  UnitState state = UnitState::sharded;
  int64_t offset = -1;  // in the arena; -1: none, or outside
  StreamSet readers;    // streams that wait for the gather
  int64_t gathers = 0;
};

// A unit's unreduced gradients. Written by Gradients only.
struct UnitGradient {
  bool held = false;           // no_sync() keeps them on this rank
  bool open = false;           // some have arrived that are not reduced
  int64_t buffer_offset = -1;  // planned, in the gradient arena; -1: memory of its own
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
  bool cast_inputs = true;  // cast inputs of its operators to its compute dtype: Note [Inputs of units]
  std::optional<at::ScalarType> output = {};  // dtype of its operators' results; not set: not cast
  UnitPhase phase = UnitPhase::idle;          // written by UnitPhases only
  Phase last_read = Phase::forward;
  bool read_backward = true;    // the plan reads it in backward, as far as known
  int pins = 0;                 // operators in flight that read it
  bool written = false;         // an operator wrote to its shards since they were gathered
  bool peers_may_read = false;  // other ranks may read its shards in place

  const std::string& name() const { return spec.layout.name; }
  int ranks() const { return spec.layout.ranks; }  // number of ranks that hold it together

  // The observer's interface: watched_unit.cpp.
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
  int64_t planned_buffer_bytes() const;  // of its gradients, if they have a planned offset
  bool complete() const;                 // every gradient has arrived
  bool stale() const;                    // shards were written since they were gathered

  // Makes the parameters views of `slot` of each region, or of nothing.
  void bind();
  void unbind();
  // Waits until no rank reads the shards in place, unless this rank still reads them.
  void claim_shards();
  bool peers_read_shard() const;    // other ranks read its shards in place
  bool saves_for_backward() const;  // a reshard group may: Note [Reshard groups]
  int64_t saved_bytes() const;
  // True if its slot must be memory of this rank alone.
  bool needs_own_slot(GatherFrom from) const;
  // Makes the next gather fetch the current values.
  void note_written();
  // An operator is about to write to a shard. Version counters miss it: optimizers write through data().
  void note_write();
  // A write to the shards was promised, and reading them waits for it.
  void note_promised_write();
};

// The region of a tag, or null.
inline UnitRegion* region_of(const Tag& tag) { return static_cast<UnitRegion*>(tag.region.load()); }

// Places the regions' slots, or gradient buffers, one after the other in `memory` [bytes], from `offset` on.
void carve_slots(const Unit& unit, const at::Tensor& memory, int64_t offset);
void carve_buffers(const Unit& unit, const at::Tensor& memory, int64_t offset);

}  // namespace fsdp::detail
