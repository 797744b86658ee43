// The state of an optimizer as checkpoints see it.
#pragma once

#include <fsdp/optimizer_format.h>

#include <string>
#include <vector>

#include "checkpoint/model_state.h"
#include "files/json.h"

namespace fsdp::detail {

// Note [Names of moments]
// What an optimizer keeps of parameter `h.0.weight` is saved as `state.h.0.weight.exp_avg` and so on, with
// the parameter's shape; how many steps it made, as the fp64 scalar `state.h.0.weight.step`. These are the
// names under which PyTorch's distributed checkpoints flatten an optimizer's state dict.
std::string moment_name(const std::string& param, const std::string& key);
inline constexpr const char* kSteps = "step";
// "state.h.0.weight" and "exp_avg" of such a name.
std::string without_key(const std::string& moment);
std::string key_of(const std::string& moment);
inline bool counts_steps(const std::string& moment) { return key_of(moment) == kSteps; }

// A part of one of the optimizer's parameters that is a part of a parameter of the model. Optimizers take
// slices, of which each is one, or flat shards, which hold several.
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
  // optimizer without a format, or of tensors that are not the model's.
  OptimizerState(const Model& model, torch::optim::Optimizer& optimizer, const OptimizerFormat* format,
                 const std::string& prefix = "");

  const std::string& type() const { return format_.type; }
  const OptimizerFormat& format() const { return format_; }
  const std::vector<Optimized>& optimized() const { return optimized_; }

  // What this rank saves of moments and steps. Moments are live where operators that write to them are seen.
  std::vector<Holding> held() const;
  // What it has of them, whoever saves it, and for every parameter a number of steps: 0 if it has no state.
  std::vector<Held> held_here() const;
  // Options of the groups, and the names of their parameters; the same on every rank.
  Json groups() const;

  // The state that the optimizer has of `one`; nothing and 0 where it has none.
  OptimizerFormat::Tensors tensors_of(const Optimized& one) const;
  int64_t steps_of(const Optimized& one) const;
  // The place of a part in `tensor`, which is dense and lies as its parameter does.
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
