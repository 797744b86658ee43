#include "kernels/cpu/adamw.h"

#include <cmath>

#include "kernels/cpu/isa.h"

#ifndef FSDP_SIMD
#define FSDP_SIMD 0
#endif

namespace fsdp::detail {

namespace {

AdamWRun choose_adamw() {
  switch (best_isa()) {
#if FSDP_SIMD
    case Isa::avx512:
      return &adamw_avx512;
    case Isa::avx2:
      return &adamw_avx2;
#endif
    default:
      return &adamw_scalar;
  }
}

}  // namespace

AdamWNumbers adamw_numbers(double lr, double beta1, double beta2, double eps, double weight_decay,
                           int64_t step) {
  const auto steps = static_cast<double>(step);
  return {.decay = static_cast<float>(1 - lr * weight_decay),
          .rest1 = static_cast<float>(1 - beta1),
          .beta2 = static_cast<float>(beta2),
          .rest2 = static_cast<float>(1 - beta2),
          .step_size = static_cast<float>(lr / (1 - std::pow(beta1, steps))),
          .bias = static_cast<float>(std::sqrt(1 - std::pow(beta2, steps))),
          .eps = static_cast<float>(eps),
          .step = static_cast<uint32_t>(step)};
}

void adamw(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow) {
  static const AdamWRun best = choose_adamw();
  best(arrays, count, numbers, narrow);
}

}  // namespace fsdp::detail
