#include "models/token_loss.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace fsdp::testing {
namespace {

struct LossAndGradient {
  torch::Tensor loss, gradient;
};

// `scale`: of the loss, as gradient accumulation has it.
LossAndGradient token_loss_of(const torch::Tensor& values, const torch::Tensor& targets, double scale,
                              bool plainly) {
  const torch::Tensor logits = values.clone().requires_grad_();
  const torch::Tensor own = logits * 1;  // its memory is the loss's to use
  const torch::Tensor loss =
      plainly ? at::cross_entropy_loss(own.to(torch::kFloat), targets) : models::token_loss(own, targets);
  (loss * scale).backward();
  return {loss.detach(), logits.grad()};
}

TEST(TokenLoss, IsCrossEntropyAndHasItsGradient) {
  torch::manual_seed(1);
  const auto type = torch::kBFloat16;
  for (const int64_t vocab : {7, 1 << 20})  // with the larger, a few rows at a time
    for (const double scale : {1.0, 0.3}) {
      const torch::Tensor values = (torch::randn({65, vocab}) * 3).to(type);
      torch::Tensor targets = torch::randint(vocab, {65});
      targets[3] = targets[64] = -100;
      const auto got = token_loss_of(values, targets, scale, false);
      const auto wanted = token_loss_of(values, targets, scale, true);
      EXPECT_TRUE(torch::allclose(got.loss, wanted.loss, 1e-5, 1e-6)) << got.loss << wanted.loss;
      EXPECT_EQ(got.loss.scalar_type(), torch::kFloat);
      EXPECT_EQ(got.gradient.scalar_type(), type);
      EXPECT_TRUE(
          torch::allclose(got.gradient.to(torch::kFloat), wanted.gradient.to(torch::kFloat), 1e-2, 1e-7))
          << type << ", " << vocab << ", " << scale;
      EXPECT_EQ(got.gradient[3].abs().max().item<float>(), 0);
    }
}

// A label whose odds are no number of fp32.
TEST(TokenLoss, IsFiniteWhereOddsAreNot) {
  torch::Tensor values = torch::zeros({2, 4}, torch::kBFloat16);
  values[0][0] = 400;
  const torch::Tensor targets = torch::tensor({1, 2}, torch::kLong);
  const auto got = token_loss_of(values, targets, 1.0, false);
  const auto wanted = token_loss_of(values, targets, 1.0, true);
  EXPECT_TRUE(torch::allclose(got.loss, wanted.loss, 1e-5, 1e-6)) << got.loss << wanted.loss;
}

TEST(TokenLoss, RefusesFp16) {
  EXPECT_THROW(models::token_loss(torch::randn({4, 5}).to(torch::kHalf), torch::zeros({4}, torch::kLong)),
               c10::Error);
}

TEST(TokenLoss, CannotBeDifferentiatedTwice) {
  const torch::Tensor logits = torch::randn({4, 5}).to(torch::kBFloat16).requires_grad_();
  const torch::Tensor loss = models::token_loss(logits * 1, torch::zeros({4}, torch::kLong));
  EXPECT_THROW(torch::autograd::grad({loss}, {logits}, {}, true, /*create_graph=*/true), c10::Error);
}

}  // namespace
}  // namespace fsdp::testing
