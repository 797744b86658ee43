#include "kernels/cpu/tree_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "comm/backend.h"
#include "kernels/cpu/stream_copy.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using detail::SumPath;

std::vector<SumPath> paths() {
  std::vector<SumPath> all{{"scalar", &detail::tree_sum_scalar}};
#if FSDP_TEST_SIMD
  if (__builtin_cpu_supports("avx2")) all.push_back({"avx2", &detail::tree_sum_avx2});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    all.push_back({"avx512", &detail::tree_sum_avx512});
#endif
  return all;
}

at::Tensor wide(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf ? t.to(at::kFloat) : t;
}

// The tree of Note [The tree of sums], written the slow way with ATen.
at::Tensor reference(const std::vector<at::Tensor>& parts, size_t first, size_t last) {
  if (last - first == 1) return wide(parts[first]);
  size_t left = 1;
  while (left * 2 < last - first) left *= 2;
  return reference(parts, first, first + left) + reference(parts, first + left, last);
}

std::vector<at::Tensor> random_parts(int sources, int64_t count, at::ScalarType type) {
  std::vector<at::Tensor> parts;
  for (int k = 0; k < sources; ++k) {
    const auto values = at::randn({count}) * 100;
    parts.push_back(type == at::kByte ? values.abs().to(type) : values.to(type));
  }
  return parts;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.nbytes() != b.nbytes()) return false;
  return a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

at::Tensor run(const SumPath& path, const std::vector<at::Tensor>& parts, double scale) {
  std::vector<const void*> sources;
  for (const auto& part : parts) sources.push_back(part.data_ptr());
  auto out = at::empty_like(parts.front());
  path.run(out.data_ptr(), sources.data(), static_cast<int>(parts.size()), static_cast<size_t>(out.numel()),
           detail::to_dtype(out.scalar_type()), scale);
  return out;
}

class TreeSum : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(TreeSum, EveryPathGivesTheBitsOfTheTree) {
  at::manual_seed(1);
  const bool whole = c10::isIntegralType(GetParam(), false);
  for (const int sources : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 20, 28, 33, 64}) {
    for (const int64_t count : {0, 1, 15, 1031}) {
      const auto parts = random_parts(sources, count, GetParam());
      for (const double scale : {1.0, 0.25, 1.0 / 3}) {
        if (whole && scale != 1.0) continue;
        auto want = reference(parts, 0, parts.size());
        if (scale != 1.0) want = want * at::scalar_tensor(scale, want.options());
        for (const auto& path : paths())
          ASSERT_TRUE(same_bits(run(path, parts, scale), want.to(GetParam())))
              << path.name << " " << sources << " x " << count << " scale " << scale;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TreeSum,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong,
                                           at::kByte),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// Every bit pattern of the 16-bit types survives widening and rounding, NaN as some NaN.
TEST(TreeSum16Bit, RoundTripsEveryPattern) {
  const auto patterns = at::arange(65536, at::TensorOptions().dtype(at::kInt)).to(at::kShort);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const auto values = patterns.view(type);
    for (const auto& path : paths()) {
      const auto back = run(path, {values}, 1.0);
      const auto equal =
          back.view(at::kShort).eq(patterns).logical_or(values.isnan().logical_and(back.isnan()));
      EXPECT_TRUE(equal.all().item<bool>()) << path.name << " " << type;
    }
  }
}

// Rounding agrees with ATen's for values between, above and below what the type holds.
TEST(TreeSum16Bit, RoundsAsTorchDoes) {
  at::manual_seed(2);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const double magnitude : {1e-9, 1e-6, 1e-4, 1.0, 3e4, 7e4}) {
      const auto a = (at::randn({4096}) * magnitude).to(type);
      const auto b = (at::randn({4096}) * magnitude).to(type);
      const auto want = (a.to(at::kFloat) + b.to(at::kFloat)).to(type);
      for (const auto& path : paths())
        EXPECT_TRUE(same_bits(run(path, {a, b}, 1.0), want)) << path.name << " " << type << " " << magnitude;
    }
  }
}

TEST(SumPath, TheEnvironmentMayAskForALesserOne) {
  const ScopedEnv scalar("FSDP_SIMD", "scalar");
  EXPECT_STREQ(detail::choose_sum_path().name, "scalar");
#if FSDP_TEST_SIMD
  const ScopedEnv avx2("FSDP_SIMD", "avx2");
  if (__builtin_cpu_supports("avx2")) {
    EXPECT_STREQ(detail::choose_sum_path().name, "avx2");
  }
#endif
}

TEST(StreamCopy, CopiesEveryByteAtEveryAlignment) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{300000}, size_t{262144},
                             size_t{1 << 20}, size_t{40 << 20}}) {
    for (const size_t shift : {0, 1, 17}) {
      std::vector<char> from(bytes + 64);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7 + 1);
      std::vector<char> to(bytes + 128, 99);
      detail::stream_copy(to.data() + shift, from.data() + 3, bytes);
      ASSERT_EQ(std::memcmp(to.data() + shift, from.data() + 3, bytes), 0) << bytes;
      ASSERT_EQ(to[bytes + shift], 99);
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
