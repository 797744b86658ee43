// The model of random programs.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "fuzz/program.h"

namespace fsdp::fuzz {

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, bool with_norm);
  at::Tensor forward(at::Tensor x, bool with_gate);
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
  at::Tensor gate, scale;  // [width], []
};
TORCH_MODULE(Block);

// A linear layer whose weight may be another layer's.
struct HeadImpl : torch::nn::Module {
  HeadImpl(const at::Tensor& weight_, int64_t width);
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight, bias); }
  at::Tensor weight, bias;
};
TORCH_MODULE(Head);

// Parameters of other types, each defined or not.
struct ExtraImpl : torch::nn::Module {
  explicit ExtraImpl(const Net& net);
  at::Tensor forward(at::Tensor x);
  at::Tensor phase, count;  // complex, int64
};
TORCH_MODULE(Extra);

// Which way a forward goes.
struct Way {
  int skip = -1;       // block that is left out
  unsigned gates = 0;  // bit i: block i uses its gate
  int fail_at = -1;    // block before which it throws; -2: backward throws
  unsigned again = 0;  // bit i: block i is computed again in backward; bit i + 1: its input waits on the host
};

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const Net& net);
  at::Tensor forward(const at::Tensor& x, Way way);
  torch::nn::Linear in{nullptr};
  Head out{nullptr};
  std::vector<Block> blocks;
  Extra extra{nullptr};

 private:
  at::Tensor run_block(size_t i, const at::Tensor& x, const Way& way);
  bool twice_;
};

// Of its real parameters.
at::ScalarType kept_type(const Net& net);
// The same values every time.
std::shared_ptr<ModelImpl> make_model(const Net& net);
// Whole parameters in order of definition, tied ones once.
std::vector<at::Tensor> parameters_of(ModelImpl& model);

}  // namespace fsdp::fuzz
