#include "models/convnet.h"

namespace fsdp::models {
namespace {

// Keeps the image size, divided by the stride.
torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

}  // namespace

ResidualBlockImpl::ResidualBlockImpl(int64_t in, int64_t out, int64_t stride) {
  conv1 = register_module("conv1", conv(in, out, 3, stride));
  bn1 = register_module("bn1", torch::nn::BatchNorm2d(out));
  conv2 = register_module("conv2", conv(out, out, 3, 1));
  bn2 = register_module("bn2", torch::nn::BatchNorm2d(out));
  if (in != out || stride != 1) downsample = register_module("downsample", conv(in, out, 1, stride));
}

torch::Tensor ResidualBlockImpl::forward(const torch::Tensor& x) {
  const auto y = bn2(conv2(at::relu(bn1(conv1(x)))));
  return at::relu(y + (downsample ? downsample(x) : x));
}

ConvNetImpl::ConvNetImpl(const ConvNetConfig& config) {
  conv1 = register_module("conv1", conv(3, config.width, 3, 1));
  bn1 = register_module("bn1", torch::nn::BatchNorm2d(config.width));
  register_module("blocks", blocks);
  int64_t channels = config.width;
  for (int64_t i = 0; i < config.num_blocks; ++i) {
    const int64_t factor = i == 0 ? 1 : 2;
    blocks->push_back(ResidualBlock(channels, channels * factor, factor));
    channels *= factor;
  }
  fc = register_module("fc", torch::nn::Linear(channels, config.num_classes));
}

torch::Tensor ConvNetImpl::forward(const torch::Tensor& images) {
  auto x = at::relu(bn1(conv1(images)));
  for (const auto& block : *blocks) x = block->as<ResidualBlock>()->forward(x);
  return fc(x.mean({2, 3}));
}

}  // namespace fsdp::models
