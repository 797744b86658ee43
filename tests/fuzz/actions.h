// What the actions of a program mean, for the plain and the sharded model alike.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "fuzz/net.h"

namespace fsdp::fuzz {

at::ScalarType compute_type(const Program& program);
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Program& program,
                                                        std::vector<at::Tensor> params);
// Rank's input number `k` of action `at`; batches differ in size.
at::Tensor input(const Program& program, size_t at, int rank, int k);
at::Tensor loss_of(const at::Tensor& y);
at::Tensor penalty_over(const std::vector<at::Tensor>& params);
// The ways of the forwards of an action on a rank.
Way way_of(const Program& program, const Action& action, int rank, int k, bool other_device);
// Whether a backward keeps a graph of its own (create_graph); then nothing may be computed again.
bool with_graph(const Action& action);
// Changes values as actions that write do: `factor` for real and complex numbers, + 1 for integers.
void change(at::Tensor& values, double factor);
// Tokens that a rank counts in its two microbatches; on some programs none anywhere.
std::vector<int64_t> token_counts(const Action& action, int rank);
// The parameter that `freeze` takes: never the first.
size_t frozen_by(const Action& action, size_t params);

}  // namespace fsdp::fuzz
