// The state of an optimizer, for checkpoints.
#pragma once

#include <fsdp/optimizer_format.h>

#include <string>
#include <vector>

#include "checkpoint/model_state.h"
#include "files/json.h"

namespace fsdp::detail {

// Note [Names of moments]
// A moment of parameter `h.0.weight` is saved as, for example, `state.h.0.weight.exp_avg`, with the
// parameter's shape; the number of steps as the fp64 scalar `state.h.0.weight.step`. PyTorch's distributed
// checkpoints use the same names when they flatten an optimizer's state dict.
std::string moment_name(const std::string& param, const std::string& key);
inline constexpr const char* kSteps = "step";
// "state.h.0.weight" and "exp_avg" of such a name.
std::string without_key(const std::string& moment);
std::string key_of(const std::string& moment);
inline bool counts_steps(const std::string& moment) { return key_of(moment) == kSteps; }

// A part of one of the optimizer's parameters that belongs to one parameter of the model. Optimizers take
// slices, each with one such part, or flat shards, which have several.
struct OptimizedPart {
  const UnitParam* param = nullptr;  // null: `name` is a parameter of each rank's own
  std::string name;
  int64_t offset = 0;  // in the optimizer's parameter
  int64_t size = 0;
  bool saves = true;
  bool tells_steps = true;  // its rank saves the number of steps
};
struct Optimized {
  at::Tensor tensor;
  size_t group = 0;
  std::vector<OptimizedPart> parts;
};

class OptimizerState {
 public:
  // `prefix` begins the names of the model's tensors: Note [Parts of a run]. Throws c10::Error for an
  // optimizer without a format, or over tensors that are not the model's.
  OptimizerState(const Model& model, torch::optim::Optimizer& optimizer, const OptimizerFormat* format,
                 const std::string& prefix = "");

  const std::string& type() const { return format_.type; }
  const OptimizerFormat& format() const { return format_; }
  const std::vector<Optimized>& optimized() const { return optimized_; }

  // Moments and steps that this rank saves. Moments are live if operators that write to them are observed.
  std::vector<Holding> held() const;
  // This rank's moments, whichever rank saves them, and every parameter's number of steps, 0 without state.
  std::vector<Held> held_here() const;
  // Options of the groups, and the names of their parameters; the same on every rank.
  Json groups() const;

  // The optimizer's state for `one`; nothing and 0 if it has none.
  OptimizerFormat::Tensors tensors_of(const Optimized& one) const;
  int64_t steps_of(const Optimized& one) const;
  // The place of a part in `tensor`, which is dense and has the memory order of its parameter.
  Held hole(const OptimizedPart& part, const std::string& name, const at::Tensor& tensor) const;

 private:
  Holding moment(const Optimized& of, const OptimizedPart& part, const std::string& key,
                 const at::Tensor& tensor) const;
  Held held_part(const OptimizedPart& part, const std::string& name, const at::Tensor& tensor) const;

  const Model& model_;
  torch::optim::Optimizer& optimizer_;
  const OptimizerFormat& format_;
  std::vector<Optimized> optimized_;
};

}  // namespace fsdp::detail
