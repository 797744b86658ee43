#include "kernels/cpu/tree_sum.h"

#include "kernels/cpu/isa.h"

#ifndef FSDP_SIMD
#define FSDP_SIMD 0
#endif

namespace fsdp::detail {

SumPath choose_sum_path() {
  switch (best_isa()) {
#if FSDP_SIMD
    case Isa::avx512:
      return {"avx512", &tree_sum_avx512};
    case Isa::avx2:
      return {"avx2", &tree_sum_avx2};
#endif
    default:
      return {"scalar", &tree_sum_scalar};
  }
}

void tree_sum(void* dst, const void* const* src, int sources, size_t count, DType type, double scale) {
  static const SumPath path = choose_sum_path();
  path.run(dst, src, sources, count, type, scale);
}

}  // namespace fsdp::detail
