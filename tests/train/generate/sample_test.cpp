// Promise: tokens are drawn from the distribution that temperature, top-k and top-p describe.
#include "trainer/sample.h"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <vector>

namespace fsdp::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Probabilities 0.4, 0.3, 0.2, 0.1, not in order.
const std::vector<double> kProbabilities{0.2, 0.4, 0.1, 0.3};

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double one : probabilities) logits.push_back(static_cast<float>(std::log(one) + 5));
  return logits;
}

std::vector<int64_t> draw(const SampleOptions& options, int count, const std::vector<float>& logits) {
  TokenSampler sampler(options);
  std::vector<int64_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(sampler.draw(logits));
  return tokens;
}

// The frequencies of 40,000 draws differ from `expected` by less than five standard deviations, at most
// 5 * sqrt(0.25 / 40000) = 0.0125.
void expect_frequencies(const SampleOptions& options, const std::vector<double>& expected) {
  constexpr int kDraws = 40'000;
  std::vector<double> found(expected.size());
  for (const int64_t token : draw(options, kDraws, logits_of(kProbabilities)))
    found[static_cast<size_t>(token)] += 1.0 / kDraws;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0)
      EXPECT_EQ(found[i], 0) << "token " << i;
    else
      EXPECT_NEAR(found[i], expected[i], 0.0125) << "token " << i;
  }
}

TEST(TokenSampler, DrawsFromTheSoftmaxOfTheLogits) { expect_frequencies({.seed = 1}, kProbabilities); }

TEST(TokenSampler, TemperatureDividesTheLogits) {
  // At 0.5 probabilities are squared, at 2 square roots are taken; then they are normalised.
  expect_frequencies({.temperature = 0.5, .seed = 2}, {0.04 / 0.3, 0.16 / 0.3, 0.01 / 0.3, 0.09 / 0.3});
  const double roots = std::sqrt(0.1) + std::sqrt(0.2) + std::sqrt(0.3) + std::sqrt(0.4);
  expect_frequencies({.temperature = 2, .seed = 3}, {std::sqrt(0.2) / roots, std::sqrt(0.4) / roots,
                                                     std::sqrt(0.1) / roots, std::sqrt(0.3) / roots});
}

TEST(TokenSampler, TopKKeepsTheMostLikely) {
  expect_frequencies({.top_k = 2, .seed = 4}, {0, 4.0 / 7, 0, 3.0 / 7});
  expect_frequencies({.top_k = 9, .seed = 5}, kProbabilities);
}

TEST(TokenSampler, TopPKeepsTheFewestThatReachIt) {
  expect_frequencies({.top_p = 0.65, .seed = 6}, {0, 4.0 / 7, 0, 3.0 / 7});
  expect_frequencies({.top_p = 0.75, .seed = 7}, {2.0 / 9, 4.0 / 9, 0, 3.0 / 9});
  EXPECT_THAT(draw({.top_p = 0.01, .seed = 8}, 100, logits_of(kProbabilities)), Each(1));
}

TEST(TokenSampler, TopPComesAfterTopK) {
  // Of two, the first has 4/7: more than half.
  EXPECT_THAT(draw({.top_k = 2, .top_p = 0.5, .seed = 9}, 100, logits_of(kProbabilities)), Each(1));
  // Of all, it has 0.4 only.
  expect_frequencies({.top_p = 0.5, .seed = 9}, {0, 4.0 / 7, 0, 3.0 / 7});
}

TEST(TokenSampler, TemperatureZeroTakesTheFirstOfTheMostLikely) {
  EXPECT_THAT(draw({.temperature = 0, .seed = 10}, 5, {1, 3, 2, 3}), Each(1));
}

TEST(TokenSampler, EqualLogitsKeepTheSmallerTokens) {
  std::array<int, 4> found{};
  for (const int64_t token : draw({.top_k = 2, .seed = 11}, 200, {7, 7, 7, 7}))
    ++found[static_cast<size_t>(token)];
  EXPECT_GT(found[0], 0);
  EXPECT_GT(found[1], 0);
  EXPECT_EQ(found[2] + found[3], 0);
}

TEST(TokenSampler, NeverDrawsATokenOfMinusInfinity) {
  const float none = -INFINITY;
  EXPECT_THAT(draw({.seed = 12}, 1000, {none, 0, none}), Each(1));
  EXPECT_THAT(draw({.top_k = 3, .top_p = 0.99, .seed = 12}, 1000, {none, 0, none}), Each(1));
}

TEST(TokenSampler, LargeLogitsDoNotOverflow) {
  EXPECT_THAT(draw({.seed = 13}, 10, {1e30F, 3e38F, -3e38F}), Each(1));
}

// The numbers are those of std::mt19937_64, which the C++ standard defines, so they hold on every machine.
TEST(TokenSampler, ASeedGivesTheSameTokensEverywhere) {
  const std::vector<float> logits = logits_of(kProbabilities);
  EXPECT_EQ(draw({.seed = 14}, 50, logits), draw({.seed = 14}, 50, logits));
  EXPECT_NE(draw({.seed = 14}, 50, logits), draw({.seed = 15}, 50, logits));
  EXPECT_THAT(draw({.seed = 1}, 8, logits), ElementsAre(0, 0, 1, 0, 1, 3, 1, 0));
}

}  // namespace
}  // namespace fsdp::train
