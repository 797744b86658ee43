#include "kernels/cpu/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace fsdp::testing {
namespace {

using detail::AdamWNumbers;
using detail::AdamWRun;

struct AdamWPath {
  std::string name;
  AdamWRun run;
};

std::vector<AdamWPath> adamw_paths() {
  std::vector<AdamWPath> all{{"scalar", &detail::adamw_scalar}};
#if FSDP_TEST_SIMD
  if (__builtin_cpu_supports("avx2")) all.push_back({"avx2", &detail::adamw_avx2});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    all.push_back({"avx512", &detail::adamw_avx512});
#endif
  return all;
}

struct AdamWCase {
  AdamWCase(int64_t count, at::ScalarType moments, bool amsgrad) {
    at::manual_seed(static_cast<uint64_t>(count));
    param = at::randn({count});
    grad = at::randn({count}) * at::randn({count}).exp();
    average = (at::randn({count}) * 0.1).to(moments);
    square = at::rand({count}).to(moments);
    if (amsgrad) maximum = at::rand({count}).to(moments);
    copy = at::zeros({count + 5}, at::kBFloat16).narrow(0, 5, count);  // at no line's beginning
  }
  void step(AdamWRun run, const AdamWNumbers& numbers) {
    run({.param = param.data_ptr<float>(),
         .grad = grad.data_ptr<float>(),
         .average = average.data_ptr(),
         .square = square.data_ptr(),
         .maximum = maximum.defined() ? maximum.data_ptr() : nullptr,
         .copy = static_cast<uint16_t*>(copy.data_ptr())},
        static_cast<size_t>(param.numel()), numbers, average.scalar_type() == at::kBFloat16);
  }
  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> tensors{param, average, square, copy};
    if (maximum.defined()) tensors.push_back(maximum);
    return tensors;
  }
  at::Tensor param, grad, average, square, maximum, copy;
};

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

const AdamWNumbers kNumbers = detail::adamw_numbers(1e-2, 0.9, 0.99, 1e-8, 0.1, 7);

TEST(HostAdamW, EveryInstructionSetGivesTheSameBits) {
  for (const int64_t count : {0, 1, 7, 8, 31, 64, 1000, 4099})
    for (const auto moments : {at::kFloat, at::kBFloat16})
      for (const bool amsgrad : {false, true}) {
        AdamWCase wanted(count, moments, amsgrad);
        wanted.step(&detail::adamw_scalar, kNumbers);
        for (const AdamWPath& path : adamw_paths()) {
          AdamWCase got(count, moments, amsgrad);
          got.step(path.run, kNumbers);
          for (size_t i = 0; i < wanted.all().size(); ++i)
            EXPECT_TRUE(equal_bits(got.all()[i], wanted.all()[i])) << path.name << ", " << count << ", " << i;
        }
      }
}

// An element's bits depend on nothing but its own numbers: arrays may be cut anywhere.
TEST(HostAdamW, CutAnywhereItGivesTheSameBits) {
  AdamWCase whole(1003, at::kFloat, false);
  const AdamWCase before(1003, at::kFloat, false);
  whole.step(&detail::adamw, kNumbers);
  for (const int64_t cut : {1, 5, 64, 999}) {
    for (const auto& [first, n] : {std::pair{int64_t{0}, cut}, std::pair{cut, 1003 - cut}}) {
      AdamWCase part = before;
      const auto take = [&, first = first, n = n](const at::Tensor& t) {
        return t.narrow(0, first, n).clone();
      };
      part.param = take(before.param), part.grad = take(before.grad), part.average = take(before.average);
      part.square = take(before.square), part.copy = take(before.copy);
      part.step(&detail::adamw, kNumbers);
      EXPECT_TRUE(equal_bits(part.param, whole.param.narrow(0, first, n))) << cut;
    }
  }
}

// So a model in host memory trains to the bits it has with LibTorch's operator. Which has other ones on
// processors without fused multiply-adds, and, without AVX-512, for elements that fill no vector: of these it
// rounds the second moment elsewhere.
TEST(HostAdamW, BitsAreThoseOfTheFusedOperator) {
#if FSDP_TEST_SIMD
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "no fused multiply-add";
  for (const int64_t count : {1, 5, 16, 77, 1000, 4099, 40000})
    for (const double beta1 : {0.9, 0.4, 0.0})
      for (const double decay : {0.0, 0.1})
        for (const bool amsgrad : {false, true}) {
          AdamWCase got(count, at::kFloat, amsgrad);
          AdamWCase wanted(count, at::kFloat, amsgrad);
          got.step(&detail::adamw, detail::adamw_numbers(1e-2, beta1, 0.99, 1e-8, decay, 7));
          const at::Tensor step = at::full({}, 7.0, at::kFloat);
          std::vector<at::Tensor> maxima;
          if (amsgrad) maxima = {wanted.maximum};
          at::_fused_adamw_({wanted.param}, {wanted.grad}, {wanted.average}, {wanted.square}, maxima, {step},
                            1e-2, beta1, 0.99, decay, 1e-8, amsgrad, false);
          wanted.copy.copy_(wanted.param);
          const int64_t whole = count - count % 16;  // elements that fill vectors
          for (size_t i = 0; i < wanted.all().size(); ++i)
            EXPECT_TRUE(equal_bits(got.all()[i].narrow(0, 0, whole), wanted.all()[i].narrow(0, 0, whole)))
                << count << ", " << beta1 << ", " << decay << ", " << amsgrad << ", " << i;
        }
#else
  GTEST_SKIP() << "one instruction set";
#endif
}

TEST(HostAdamW, IsAdamW) {
  for (const bool amsgrad : {false, true}) {
    AdamWCase got(5000, at::kFloat, amsgrad);
    const AdamWCase before(5000, at::kFloat, amsgrad);
    got.step(&detail::adamw, kNumbers);
    const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
    const at::Tensor m = wide(before.average) * 0.9 + wide(before.grad) * 0.1;
    const at::Tensor v = wide(before.square) * 0.99 + wide(before.grad).square() * 0.01;
    const at::Tensor largest = amsgrad ? at::maximum(wide(before.maximum), v) : v;
    const at::Tensor denominator = largest.sqrt() / std::sqrt(1 - std::pow(0.99, 7)) + 1e-8;
    const at::Tensor p = wide(before.param) * (1 - 1e-3) - 1e-2 / (1 - std::pow(0.9, 7)) * m / denominator;
    EXPECT_TRUE(at::allclose(wide(got.param), p, 1e-6, 1e-6));
    EXPECT_TRUE(at::allclose(wide(got.average), m, 1e-6, 1e-6));
    EXPECT_TRUE(at::allclose(wide(got.square), v, 1e-6, 1e-6));
    EXPECT_TRUE(equal_bits(got.copy, got.param.to(at::kBFloat16))) << "the copy is rounded to the nearest";
  }
}

TEST(HostAdamW, TheFactorMultipliesTheGradientFirst) {
  for (const AdamWPath& path : adamw_paths())
    for (const auto moments : {at::kFloat, at::kBFloat16}) {
      AdamWNumbers numbers = kNumbers;
      numbers.factor = 0.37F;
      AdamWCase got(1003, moments, true), wanted(1003, moments, true);
      got.step(path.run, numbers);
      wanted.grad.mul_(numbers.factor);
      wanted.step(path.run, kNumbers);
      for (size_t i = 0; i < wanted.all().size(); ++i)
        EXPECT_TRUE(equal_bits(got.all()[i], wanted.all()[i])) << path.name << ", " << i;
    }
}

TEST(HostAdamW, WhatIsNotFiniteStaysSo) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto moments : {at::kFloat, at::kBFloat16}) {
    AdamWCase got(3, moments, false);
    got.grad.copy_(at::tensor({inf, nan, 1.0F}));
    got.step(&detail::adamw, kNumbers);
    EXPECT_TRUE(std::isinf(got.square[0].item<float>()));
    EXPECT_TRUE(std::isnan(got.average[1].item<float>()));
    EXPECT_TRUE(std::isnan(got.copy[1].item<float>()));
    EXPECT_TRUE(std::isfinite(got.param[2].item<float>()));
  }
}

// Of a NaN with all bits set, rounding up makes a zero.
TEST(HostAdamW, NoNanIsRoundedToANumber) {
  for (const AdamWPath& path : adamw_paths())
    for (const auto moments : {at::kFloat, at::kBFloat16}) {
      AdamWCase got(1200, moments, true);
      for (at::Tensor* one : {&got.param, &got.grad}) one->view(at::kInt).fill_(0x7fffffff);
      got.step(path.run, kNumbers);
      for (const at::Tensor& one : {got.copy, got.average, got.square})
        EXPECT_TRUE(one.isnan().all().item<bool>()) << path.name;
    }
}

// Up or down at random, so that the mean of many is the value.
TEST(HostAdamW, NarrowMomentsAreRightOnAverage) {
  const int64_t n = 200000;
  AdamWCase got(n, at::kBFloat16, false), wide(n, at::kFloat, false);
  wide.average.copy_(got.average);
  wide.square.copy_(got.square);
  got.step(&detail::adamw, kNumbers);
  wide.step(&detail::adamw, kNumbers);
  const at::Tensor error = (got.average.to(at::kDouble) - wide.average) / wide.average.abs().clamp_min(1e-3);
  EXPECT_LT(std::abs(error.mean().item<double>()), 2e-5);
  EXPECT_GT(error.abs().mean().item<double>(), 5e-4) << "it is rounded";
}

}  // namespace
}  // namespace fsdp::testing
