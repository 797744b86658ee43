// The state of an optimizer as checkpoints see it.
#pragma once

#include <fsdp/optimizer_format.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_state.h"
#include "files/json.h"
#include "files/manifest.h"

namespace fsdp::detail {

// Note [Names of moments]
// What an optimizer keeps of parameter `h.0.weight` is saved as `state.h.0.weight.exp_avg` and so on, with
// the parameter's shape; how many steps it made, as the fp64 scalar `state.h.0.weight.step`. These are the
// names under which PyTorch's distributed checkpoints flatten an optimizer's state dict.
std::string moment_name(const std::string& param, const std::string& key);

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
  // Throws c10::Error for an optimizer without a format, or of tensors that are not the model's.
  OptimizerState(const Model& model, torch::optim::Optimizer& optimizer, const OptimizerFormat* format);

  const std::string& type() const { return format_.type; }

  // What this rank saves of moments and steps.
  std::vector<Holding> held() const { return held_if(&OptimizedPart::saves); }
  // What it has of them, whoever saves it.
  std::vector<Holding> held_here() const { return held_if(nullptr); }
  // Options of the groups, and the names of their parameters; the same on every rank.
  Json groups() const;

  // Makes states for what `manifest` holds: their memory is to be filled, then attach() is to be called.
  // `saved_name` is what the checkpoint calls a parameter; "": it keeps the state it has. Adds to `errors`
  // what does not fit.
  std::vector<Held> prepare(const Manifest& manifest,
                            const std::function<std::string(const std::string&)>& saved_name,
                            std::vector<std::string>& errors);
  // Gives the optimizer what was prepared, and the groups' options.
  void attach(const Json& groups);

 private:
  struct Prepared {
    const Optimized* of = nullptr;
    OptimizerFormat::Tensors tensors;
    at::Tensor steps;  // [], fp64
  };

  std::vector<Holding> held_if(bool OptimizedPart::*wanted) const;
  Held held_part(const OptimizedPart& part, const std::string& name, const at::Tensor& tensor) const;

  const Model& model_;
  torch::optim::Optimizer& optimizer_;
  const OptimizerFormat& format_;
  std::vector<Optimized> optimized_;
  std::vector<Prepared> prepared_;
  std::vector<const c10::TensorImpl*> replaced_;  // parameters whose state is
};

}  // namespace fsdp::detail
