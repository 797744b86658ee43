// What a random program gives without sharding: a plain loop over the ranks in fp64.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "fuzz/net.h"

namespace fsdp::fuzz {

// After one action.
struct Record {
  std::vector<std::vector<at::Tensor>> seen;  // per rank: what the program read
  std::vector<at::Tensor> grads;              // per parameter, whole; undefined: none
  std::vector<at::Tensor> weights;
};

std::vector<Record> run_plain(const Program& program, bool other_device);

// --- What plain and sharded programs share.

at::ScalarType compute_type(const Program& program);
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Program& program,
                                                        std::vector<at::Tensor> params);
// Rank's input number `k` of action `at`; batches differ in size.
at::Tensor input(const Program& program, size_t at, int rank, int k);
at::Tensor loss_of(const at::Tensor& y);
at::Tensor penalty_over(const std::vector<at::Tensor>& params);
// The ways of the forwards of an action on a rank.
Way way_of(const Program& program, const Action& action, int rank, int k, bool other_device);
// Changes values as actions that write do: `factor` for real and complex numbers, + 1 for integers.
void change(at::Tensor& values, double factor);
// The parameter that `freeze` takes: never the first.
size_t frozen_by(const Action& action, size_t params);

}  // namespace fsdp::fuzz
