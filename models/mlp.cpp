#include "models/mlp.h"

namespace fsdp::models {
namespace {

torch::Tensor activate(const torch::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return at::relu(x);
    case Activation::gelu:
      return at::gelu(x);
    case Activation::tanh:
      return at::tanh(x);
  }
  TORCH_CHECK(false, "no such activation: ", static_cast<int>(activation));
}

}  // namespace

MLPImpl::MLPImpl(const std::vector<int64_t>& sizes, Activation activation) : activation(activation) {
  TORCH_CHECK(sizes.size() >= 2, "an MLP needs the sizes of its input and its output; got ", sizes.size(),
              " sizes");
  register_module("layers", layers);
  for (size_t i = 1; i < sizes.size(); ++i) layers->push_back(torch::nn::Linear(sizes[i - 1], sizes[i]));
}

torch::Tensor MLPImpl::forward(torch::Tensor x) {
  for (size_t i = 0; i < layers->size(); ++i) {
    if (i > 0) x = activate(x, activation);
    x = layers->at<torch::nn::LinearImpl>(i).forward(x);
  }
  return x;
}

}  // namespace fsdp::models
