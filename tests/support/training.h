// Training loops for comparisons: sharded, and the plain loop it must equal.
#pragma once

#include <fsdp/fsdp.h>

#include <map>
#include <string>
#include <vector>

#include "support/learners.h"

namespace fsdp::testing {

enum class Optim { plain_sgd, sgd, adamw, fused_adamw };  // sgd: with momentum

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optim kind, std::vector<at::Tensor> params);

using State = std::map<std::string, at::Tensor>;  // parameter name -> whole value

State state_of(Learner& learner);
State state_of(Sharded<Learner>& model);

// Sums along the tree of Note [The tree of sums].
at::Tensor tree_sum(const std::vector<at::Tensor>& terms);

// `steps` of the plain model on all ranks' batches; gradients are summed over ranks by tree_sum and averaged.
// Another `compute` type: weights are kept, and gradients summed, in the model's own type.
// Several `microbatches`: each rank adds up their gradients, in fp32, before they are summed over ranks.
State train_plain(Learner& learner, int ranks, int steps, Optim kind, at::ScalarType compute = at::kFloat,
                  int microbatches = 1);
// As one batch: the mean of the ranks' losses in one go.
State train_whole_batch(Learner& learner, int ranks, int steps, Optim kind);
// One batch after the other, gradients added as autograd does.
State train_accumulated(Learner& learner, int ranks, int steps, Optim kind);
// The same sharded: rank r of step s has batch s * W + r.
void train_sharded(Sharded<Learner>& model, const World& world, int steps, Optim kind);

// "" when all are the same, bit for bit; otherwise what differs and by how much.
std::string difference(const State& got, const State& wanted);
// The largest |a - b| / max|b| of any tensor.
double drift(const State& got, const State& wanted);

}  // namespace fsdp::testing
