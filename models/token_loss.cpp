#include "models/token_loss.h"

#include <torch/autograd.h>
#include <torch/torch.h>

#include <algorithm>

namespace fsdp::models {

namespace {

constexpr int64_t kLeftOut = -100;
constexpr int64_t kElementsAtOnce = int64_t{1} << 25;

class TokenLoss : public torch::autograd::Function<TokenLoss> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& logits,
                               const torch::Tensor& targets) {
    const torch::Tensor counts = targets != kLeftOut;
    const torch::Tensor weight = counts.to(torch::kFloat) / counts.sum();
    const torch::Tensor labels = targets.masked_fill(targets == kLeftOut, 0);
    const int64_t rows = std::max<int64_t>(1, kElementsAtOnce / logits.size(1));
    torch::Tensor loss = torch::zeros({}, weight.options());
    for (int64_t first = 0; first < logits.size(0); first += rows) {
      const int64_t n = std::min(rows, logits.size(0) - first);
      const auto cut = [&](const torch::Tensor& all) { return all.narrow(0, first, n); };
      torch::Tensor place = cut(logits);
      const torch::Tensor label = cut(labels).unsqueeze(1);
      const torch::Tensor picked = place.gather(1, label);
      torch::Tensor odds = torch::softmax(place.to(torch::kFloat), 1);
      // The logarithm is taken of the largest probability, since the label's may be zero.
      const auto [most, where] = odds.max(1, /*keepdim=*/true);
      const torch::Tensor total = place.gather(1, where).to(torch::kFloat) - most.log();
      loss += ((total - picked.to(torch::kFloat)).squeeze(1) * cut(weight)).sum();
      odds.scatter_add_(1, label, torch::full({n, 1}, -1.0, odds.options()));
      at::mul_out(place, odds, cut(weight).unsqueeze(1));  // rounds as it writes
    }
    context->save_for_backward({logits});
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    TORCH_CHECK(!torch::GradMode::is_enabled(),
                "fsdp::models: the loss of a model in bf16 cannot be differentiated twice; take the "
                "loss of its logits in fp32 instead");
    return {context->get_saved_variables()[0] * gradients[0], {}};
  }
};

}  // namespace

torch::Tensor token_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  TORCH_CHECK(logits.scalar_type() == torch::kBFloat16,
              "fsdp::models: token_loss is for logits in bf16, not ", logits.scalar_type(),
              ": a gradient in fp16 must be scaled before it is rounded; take "
              "at::cross_entropy_loss of the logits in fp32");
  return TokenLoss::apply(logits, targets);
}

}  // namespace fsdp::models
