// A small residual network for images. Its batch norms keep running statistics as buffers.
#pragma once

#include <torch/nn.h>

namespace fsdp::models {

struct ConvNetConfig {
  int64_t num_classes = 10;
  int64_t width = 16;      // channels of the first block; every further one doubles them and halves the image
  int64_t num_blocks = 3;  // an image needs at least 2^(num_blocks - 1) pixels a side
};

// [batch, in, height, width] -> [batch, out, height / stride, width / stride], rounded up.
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(int64_t in, int64_t out, int64_t stride);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  torch::nn::Conv2d downsample{nullptr};  // only if the shape changes
};
TORCH_MODULE(ResidualBlock);

struct ConvNetImpl : torch::nn::Module {
  explicit ConvNetImpl(const ConvNetConfig& config);
  torch::Tensor forward(const torch::Tensor& images);  // [batch, 3, height, width] -> [batch, classes]

  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ConvNet);

}  // namespace fsdp::models
