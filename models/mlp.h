// A multilayer perceptron.
#pragma once

#include <torch/nn.h>

#include <vector>

namespace fsdp::models {

enum class Activation { relu, gelu, tanh };

struct MLPImpl : torch::nn::Module {
  // One Linear between each two neighbours of `sizes`, named layers.0, layers.1, ...; `activation` after all
  // but the last.
  explicit MLPImpl(const std::vector<int64_t>& sizes, Activation activation = Activation::relu);
  torch::Tensor forward(torch::Tensor x);  // [..., sizes.front()] -> [..., sizes.back()]

  Activation activation;
  torch::nn::ModuleList layers;
};
TORCH_MODULE(MLP);

}  // namespace fsdp::models
