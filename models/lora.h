// Low-rank adapters (LoRA): two small trainable matrices beside each of some frozen linear layers.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::models {

struct LoraConfig {
  int64_t rank = 0;   // 0: no adapters; all parameters are trained
  double alpha = 16;  // the adapters' output is scaled by alpha / rank
  // Layers that get adapters, by the end of their names: "q_proj" or "attn.c_proj". Empty: the projections of
  // the attention.
  std::vector<std::string> targets = {};
};

// True for the name of an adapter's parameter, for example as SaveOptions::filter.
bool is_adapter(const std::string& name);

// The adapter of one layer: alpha / rank * B(A(x)). It registers `lora_A` [rank, in] and `lora_B` [out, rank]
// in the layer, as PEFT does. A starts as a Linear's weight, B as zeros, so the layer's output is unchanged.
class LoraAdapter {
 public:
  void add(torch::nn::Module& layer, int64_t in, int64_t out, const LoraConfig& config);
  // `output` of the layer for `x`, with the adapter's share if there is one.
  torch::Tensor add_to(const torch::Tensor& output, const torch::Tensor& x);

 private:
  torch::nn::Linear a_{nullptr}, b_{nullptr};
  double scale_ = 0;
};

// A linear layer that can get an adapter. Its own parameters keep their names, so pretrained weights fit.
struct Adaptable {
  virtual ~Adaptable() = default;
  virtual void add_adapter(const LoraConfig& config) = 0;

 protected:
  LoraAdapter adapter;
};

struct LoraLinearImpl : torch::nn::LinearImpl, Adaptable {
  using torch::nn::LinearImpl::LinearImpl;
  torch::Tensor forward(const torch::Tensor& x);
  void add_adapter(const LoraConfig& config) override;
};
TORCH_MODULE(LoraLinear);

// Adds adapters to the layers of `model` that config.targets name, or `standard` if it names none, and
// freezes all other parameters. Nothing happens if the rank is 0. Call it after the other parameters have
// their initial values: a seed then gives the same ones with and without adapters. Throws c10::Error for a
// target that no layer has, with the layers there are.
void add_adapters(torch::nn::Module& model, const LoraConfig& config,
                  const std::vector<std::string>& standard);

}  // namespace fsdp::models
