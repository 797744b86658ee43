#include "kernels/cpu/square_sum.h"

#include "kernels/cpu/isa.h"

#ifndef FSDP_SIMD
#define FSDP_SIMD 0
#endif

namespace fsdp::detail {

double square_sum(const float* values, size_t count) {
#if FSDP_SIMD
  static const bool vectors = best_isa() != Isa::scalar;
  if (vectors) return square_sum_avx2(values, count);
#endif
  return square_sum_scalar(values, count);
}

}  // namespace fsdp::detail
