// A model's or an optimizer's tensors by name: whole, as boxes, or as local shards.
#pragma once

#include <fsdp/optimizer_format.h>
#include <fsdp/sharded_model.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp {

enum class StateDictType : uint8_t {
  full,     // every tensor whole, under every name of the module
  local,    // this rank's flat shards, for the same number of ranks and the same units
  sharded,  // the boxes of each tensor that this rank holds
};

struct StateDictOptions {
  StateDictType type = StateDictType::full;
  bool offload = false;     // copies in host memory
  bool rank0_only = false;  // full: other ranks get nothing
};

// A rectangle of a tensor: elements [offsets, offsets + sizes of `tensor`).
struct TensorBox {
  std::vector<int64_t> offsets;
  at::Tensor tensor;
};

// One rank's part of one tensor.
struct StateEntry {
  std::vector<int64_t> shape;    // shape of the whole tensor
  std::vector<TensorBox> boxes;  // full: one box, at 0; local: one flat box; sharded: any number, or none
};

using StateDict = torch::OrderedDict<std::string, StateEntry>;

// Returns copies of parameters and buffers: training does not change them. Tied parameters appear under all
// their names, which share memory. Buffers are each rank's own, whole. Collective, between steps. full:
// gathers unit by unit, so memory holds the result and one gathered unit.
StateDict state_dict(const ShardedModel& model, const StateDictOptions& options = {});
// Calls `visit` with one whole tensor at a time, for example to write them out: memory holds one gathered
// unit. Only for StateDictType::full.
void visit_state_dict(const ShardedModel& model, const StateDictOptions& options,
                      const std::function<void(const std::string& name, const at::Tensor& whole)>& visit);

// Loads `state`, of any type, into the module; a full state is needed on every rank. Strict: throws
// CheckpointError, before anything is changed, with all tensors that are missing, unexpected or of another
// shape or dtype. Not strict: loads what fits. Collective, between steps.
void load_state_dict(const ShardedModel& model, const StateDict& state, bool strict = true);

// Returns the optimizer's state under the names of checkpoints: "state.<parameter>.exp_avg", and for every
// parameter ".step", an fp64 scalar, 0 if there is no state. Names of local moments begin with "flat.".
// Moments of ignored parameters are each rank's own, whole in every type. For optimizers over
// model.parameters() and ignored parameters; `format` as in RunState. Collective, between steps. full:
// gathers one kind of moment of one unit at a time.
StateDict optimizer_state_dict(const ShardedModel& model, torch::optim::Optimizer& optimizer,
                               const StateDictOptions& options = {}, const OptimizerFormat* format = nullptr);
// Replaces the optimizer's state by `state`, of any type; a full state is needed on every rank. Options of
// groups stay as they are. Throws CheckpointError, before anything is changed, with all tensors that are
// missing, unexpected, incomplete or of another shape or dtype. Collective, between steps.
void load_optimizer_state_dict(const ShardedModel& model, torch::optim::Optimizer& optimizer,
                               const StateDict& state, const OptimizerFormat* format = nullptr);

}  // namespace fsdp
