// Parameter groups with and without weight decay.
#pragma once

#include <fsdp/sharded_model.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

namespace fsdp {

// model.parameters() that need gradients, by the shape of the whole parameter.
struct DecaySplit {
  std::vector<at::Tensor> matrices;  // two dimensions or more: weights and embeddings
  std::vector<at::Tensor> vectors;   // the others: biases and scales of norms
};
DecaySplit split_by_shape(const ShardedModel& model);

// Groups for an optimizer whose options have weight_decay(): weights and embeddings with the decay of
// `options`, biases and scales of norms without. A group without parameters is left out.
//
//   fsdp::AdamW optimizer(fsdp::decay_groups(model, fsdp::AdamWOptions(3e-4).weight_decay(0.1)), {});
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> decay_groups(const ShardedModel& model,
                                                            const Options& options) {
  DecaySplit split = split_by_shape(model);
  Options without = options;
  without.weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  if (!split.matrices.empty())
    groups.emplace_back(std::move(split.matrices), std::make_unique<Options>(options));
  if (!split.vectors.empty())
    groups.emplace_back(std::move(split.vectors), std::make_unique<Options>(without));
  return groups;
}

}  // namespace fsdp
