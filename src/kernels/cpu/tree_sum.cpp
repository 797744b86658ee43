#include "kernels/cpu/tree_sum.h"

#include <cstdlib>
#include <string_view>

#ifndef FSDP_SIMD
#define FSDP_SIMD 0
#endif

namespace fsdp::detail {

SumPath choose_sum_path() {
  const char* asked = std::getenv("FSDP_SIMD");
  [[maybe_unused]] const std::string_view limit = asked != nullptr ? asked : "";
#if FSDP_SIMD
  if (limit != "scalar" && limit != "avx2" && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return {"avx512", &tree_sum_avx512};
  // Every processor with both has f16c, which clang 14 cannot ask for.
  if (limit != "scalar" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {"avx2", &tree_sum_avx2};
#endif
  return {"scalar", &tree_sum_scalar};
}

void tree_sum(void* dst, const void* const* src, int sources, size_t count, DType type, double scale) {
  static const SumPath path = choose_sum_path();
  path.run(dst, src, sources, count, type, scale);
}

}  // namespace fsdp::detail
