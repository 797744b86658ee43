// A small model of three blocks, and the usual ways to shard it.
#pragma once

#include <string>
#include <vector>

#include "support/twins.h"

namespace fsdp::testing {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width = 8) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    in = register_module("in", torch::nn::Linear(6, 8));
    for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(8)));
    out = register_module("out", torch::nn::Linear(8, 4));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = in(x);
    for (auto& block : blocks) h = block(h);
    return out(h);
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  std::vector<Block> blocks;
};
TORCH_MODULE(Net);

inline std::shared_ptr<NetImpl> make_net() { return std::make_shared<NetImpl>(); }
// The same values every time, whatever other ranks draw meanwhile.
inline std::shared_ptr<NetImpl> make_same_net() {
  auto net = make_net();
  const torch::NoGradGuard no_grad;
  double shift = 0;
  for (at::Tensor& param : net->parameters())
    param.copy_((torch::arange(param.numel()) * 0.7 + ++shift).sin().mul(0.3).view(param.sizes()));
  return net;
}
inline at::Tensor net_batch(int64_t number) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(number) + 77);
  return torch::randn({4, 6}, generator);
}
inline at::Tensor loss_of(const at::Tensor& y) { return y.square().mean(); }

// One unit per block, one per large module, one in all.
inline std::vector<Variant> usual_variants() {
  return {{"blocks", sharded_by(by_type<BlockImpl>())},
          {"sizes", sharded_by(by_size(100))},
          {"whole", sharded_by(whole_model())}};
}

template <class Make, class Program>
void expect_same(Make make, Program program) {
  expect_same(make, program, usual_variants());
}

}  // namespace fsdp::testing
