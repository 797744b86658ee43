#include "models/causal_lm.h"

#include <unordered_set>
#include <utility>

#include "models/token_loss.h"

namespace fsdp::models {

LMHeadImpl::LMHeadImpl(torch::Tensor weight) : weight(register_parameter("weight", std::move(weight))) {}

torch::Tensor LMHeadImpl::forward(const torch::Tensor& hidden) { return at::linear(hidden, weight); }

torch::OrderedDict<std::string, torch::Tensor> CausalLMImpl::named_parameters(bool recurse) const {
  torch::OrderedDict<std::string, torch::Tensor> once;
  std::unordered_set<const at::TensorImpl*> seen;
  for (auto& item : torch::nn::Module::named_parameters(recurse)) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) once.insert(item.key(), item.value());
  }
  return once;
}

std::vector<torch::Tensor> CausalLMImpl::parameters(bool recurse) const {
  return named_parameters(recurse).values();
}

void CausalLMImpl::make_lm_head(const torch::Tensor& embedding, bool tied) {
  lm_head = register_module("lm_head", LMHead(tied ? embedding : torch::empty_like(embedding)));
}

torch::Tensor CausalLMImpl::logits_or_loss(const torch::Tensor& hidden, const torch::Tensor& targets) {
  auto logits = lm_head(hidden);
  if (!targets.defined()) return logits;
  logits = logits.flatten(0, -2);
  // fp16 is left out: its gradient must be scaled before it is rounded.
  const bool fits = logits.scalar_type() == torch::kBFloat16 && logits.requires_grad();
  if (fits) return token_loss(logits, targets.flatten());
  return at::cross_entropy_loss(logits.to(torch::kFloat), targets.flatten());
}

}  // namespace fsdp::models
