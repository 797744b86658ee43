// What a random program gives without sharding: a plain loop over the ranks in fp64.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "fuzz/actions.h"

namespace fsdp::fuzz {

// After one action.
struct Record {
  std::vector<std::vector<at::Tensor>> seen;  // per rank: what the program read
  std::vector<at::Tensor> grads;              // per parameter, whole; undefined: none
  std::vector<at::Tensor> weights;
};

std::vector<Record> run_plain(const Program& program, bool other_device);

}  // namespace fsdp::fuzz
