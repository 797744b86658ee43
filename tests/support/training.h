// Optimizers to train with, and states to compare.
#pragma once

#include <fsdp/fsdp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/learners.h"
#include "support/plain_trainer.h"

namespace fsdp::testing {

// sgd: with momentum. decaying_adamw: a gradient of zeros is not the same as none.
enum class Optim { plain_sgd, sgd, adamw, fused_adamw, decaying_adamw };

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optim kind, std::vector<at::Tensor> params);
MakeOptimizer optimizer_of(Optim kind);

State state_of(const torch::nn::Module& module);
template <class M>
State state_of(Sharded<M>& model) {
  const auto whole = model.full_params();
  return state_of(model.module());
}

// As one batch: the mean of the ranks' losses in one go.
State train_whole_batch(Learner& learner, int ranks, int steps, Optim kind);
// One batch after the other, gradients added as autograd does.
State train_accumulated(Learner& learner, int ranks, int steps, Optim kind);

// "" when all are the same, bit for bit; otherwise what differs and by how much.
std::string difference(const State& got, const State& wanted);
// Throws the difference, if there is one.
void require_same(const State& got, const State& wanted, const std::string& what = "");
// The largest |a - b| / max|b| of any tensor.
double drift(const State& got, const State& wanted);

}  // namespace fsdp::testing
