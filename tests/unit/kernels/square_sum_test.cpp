#include "kernels/cpu/square_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fsdp::testing {
namespace {

TEST(SquareSum, EveryInstructionSetGivesTheSameBits) {
#if FSDP_TEST_SIMD
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "one instruction set";
  for (const int64_t count : {0, 1, 15, 16, 17, 1000, 65536, 100003}) {
    at::manual_seed(static_cast<uint64_t>(count));
    const at::Tensor values = at::randn({count + 1}) * at::randn({count + 1}).exp();
    const float* first = values.const_data_ptr<float>() + 1;  // at no vector's beginning
    EXPECT_EQ(detail::square_sum_avx2(first, static_cast<size_t>(count)),
              detail::square_sum_scalar(first, static_cast<size_t>(count)))
        << count;
  }
#else
  GTEST_SKIP() << "one instruction set";
#endif
}

TEST(SquareSum, AddsInDoublePrecision) {
  for (const int64_t count : {1, 16, 23, 100003}) {
    const at::Tensor values = at::full({count}, 1e-3F);
    const double wanted =
        static_cast<double>(count) * static_cast<double>(1e-3F) * static_cast<double>(1e-3F);
    EXPECT_NEAR(detail::square_sum(values.const_data_ptr<float>(), static_cast<size_t>(count)) / wanted, 1,
                1e-12);
  }
  const float large[] = {3e38F, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_NEAR(detail::square_sum(large, 1) / 9e76, 1, 1e-6) << "a square that fp32 cannot hold";
  EXPECT_TRUE(std::isnan(detail::square_sum(large, 2)));
}

}  // namespace
}  // namespace fsdp::testing
