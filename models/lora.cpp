#include "models/lora.h"

#include <algorithm>
#include <set>

namespace fsdp::models {
namespace {

torch::nn::Linear matrix(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

bool ends_with_part(const std::string& name, const std::string& part) {
  return name == part || name.ends_with("." + part);
}

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void check(const LoraConfig& config) {
  TORCH_CHECK(config.rank > 0, "the rank of adapters is ", config.rank, "; expected 1 or more, 0 for none");
  TORCH_CHECK(config.alpha > 0, "alpha of adapters is ", config.alpha, "; expected a positive number");
}

}  // namespace

bool is_adapter(const std::string& name) {
  return name.find(".lora_A.") != std::string::npos || name.find(".lora_B.") != std::string::npos;
}

void LoraAdapter::add(torch::nn::Module& layer, int64_t in, int64_t out, const LoraConfig& config) {
  scale_ = config.alpha / static_cast<double>(config.rank);
  a_ = layer.register_module("lora_A", matrix(in, config.rank));
  b_ = layer.register_module("lora_B", matrix(config.rank, out));
  torch::nn::init::zeros_(b_->weight);
}

torch::Tensor LoraAdapter::add_to(const torch::Tensor& output, const torch::Tensor& x) {
  return a_ ? at::add(output, b_(a_(x)), scale_) : output;
}

torch::Tensor LoraLinearImpl::forward(const torch::Tensor& x) {
  return adapter.add_to(torch::nn::LinearImpl::forward(x), x);
}

void LoraLinearImpl::add_adapter(const LoraConfig& config) {
  adapter.add(*this, options.in_features(), options.out_features(), config);
}

void add_adapters(torch::nn::Module& model, const LoraConfig& config,
                  const std::vector<std::string>& standard) {
  if (config.rank == 0) return;
  check(config);
  const auto& targets = config.targets.empty() ? standard : config.targets;
  for (torch::Tensor& parameter : model.parameters()) parameter.set_requires_grad(false);
  std::set<std::string> unmatched(targets.begin(), targets.end()), layers;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    auto* layer = dynamic_cast<Adaptable*>(item.value().get());
    if (layer == nullptr) continue;
    const std::string& name = item.key();
    layers.insert(name.substr(name.find_last_of('.') + 1));
    bool wanted = false;
    for (const std::string& target : targets) {
      if (!ends_with_part(name, target)) continue;
      unmatched.erase(target);
      wanted = true;
    }
    if (wanted) layer->add_adapter(config);
  }
  TORCH_CHECK(unmatched.empty(), "adapters are wanted for '", *unmatched.begin(),
              "', but no linear layer has that name. The model has: ", listed(layers));
}

}  // namespace fsdp::models
