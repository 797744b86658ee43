// A multilayer perceptron.
#pragma once

#include <torch/nn.h>

#include <vector>

namespace fsdp::models {

enum class Activation { relu, gelu, tanh };

struct MLPImpl : torch::nn::Module {
  // Layers named layers.0, layers.1, ...: a Linear from each of `sizes` to the next. `activation` follows all
  // but the last.
  explicit MLPImpl(const std::vector<int64_t>& sizes, Activation activation = Activation::relu);
  torch::Tensor forward(torch::Tensor x);  // [..., sizes.front()] -> [..., sizes.back()]

  Activation activation;
  torch::nn::ModuleList layers;
};
TORCH_MODULE(MLP);

}  // namespace fsdp::models
