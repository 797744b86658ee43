#include "models/rotary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fsdp::testing {
namespace {

using models::apply_rotary;
using models::RotaryEmbedding;

// The rotary embedding of position p turns the pair (i, i + head_dim / 2) by p * theta^(-2i / head_dim).
TEST(Rotary, TurnsPairsByTheAngleOfThePosition) {
  const int64_t time = 5, head_dim = 6;
  RotaryEmbedding rotary(head_dim, 100.0);
  const auto x = at::randn({1, 1, time, head_dim}, at::kDouble);
  const auto y = apply_rotary(x, rotary.tables(time, x));
  for (int64_t p = 0; p < time; ++p) {
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(100.0, -2.0 * static_cast<double>(i) / head_dim);
      const double a = x[0][0][p][i].item<double>(), b = x[0][0][p][i + 3].item<double>();
      // The tables are fp32.
      EXPECT_NEAR(y[0][0][p][i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-5);
      EXPECT_NEAR(y[0][0][p][i + 3].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-5);
    }
  }
}

TEST(Rotary, ScoresDependOnTheDistanceOnly) {
  const int64_t time = 9, head_dim = 8;
  RotaryEmbedding rotary(head_dim, 10000.0);
  // The same query and the same key at every position.
  const auto q = at::randn({1, 1, 1, head_dim}).expand({1, 1, time, head_dim});
  const auto k = at::randn({1, 1, 1, head_dim}).expand({1, 1, time, head_dim});
  const auto tables = rotary.tables(time, q);
  const auto scores = apply_rotary(q, tables).matmul(apply_rotary(k, tables).transpose(2, 3))[0][0];
  for (int64_t distance = 0; distance < time; ++distance) {
    const auto diagonal = scores.diagonal(-distance);
    EXPECT_TRUE(at::allclose(diagonal, diagonal[0].expand_as(diagonal), 1e-4, 1e-5))
        << "distance " << distance;
  }
  EXPECT_FALSE(at::allclose(scores[8][8], scores[8][4])) << "and on the distance they do depend";
}

TEST(Rotary, KeepsFp32TablesAndGrowsThem) {
  RotaryEmbedding rotary(8, 10000.0);
  const auto fp32 = at::empty({0}), bf16 = at::empty({0}, at::kBFloat16);
  const auto rounded = rotary.tables(6, bf16);
  EXPECT_EQ(rounded.cos.scalar_type(), at::kBFloat16);
  const auto longer = rotary.tables(9, fp32), shorter = rotary.tables(6, fp32);
  EXPECT_EQ(longer.cos.sizes(), (std::vector<int64_t>{9, 8}));
  EXPECT_TRUE(shorter.sin.equal(longer.sin.narrow(0, 0, 6)));
  EXPECT_TRUE(shorter.sin.to(at::kBFloat16).equal(rounded.sin));
  EXPECT_TRUE(shorter.cos.is_alias_of(longer.cos)) << "made once";
}

}  // namespace
}  // namespace fsdp::testing
