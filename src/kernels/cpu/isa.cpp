#include "kernels/cpu/isa.h"

#include <cstdlib>
#include <string_view>

#ifndef FSDP_SIMD
#define FSDP_SIMD 0
#endif

namespace fsdp::detail {

Isa best_isa() {
  const char* asked = std::getenv("FSDP_SIMD");
  [[maybe_unused]] const std::string_view limit = asked != nullptr ? asked : "";
#if FSDP_SIMD
  if (limit != "scalar" && limit != "avx2" && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return Isa::avx512;
  // Every processor with both has f16c, which clang 14 cannot ask for.
  if (limit != "scalar" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::scalar;
}

}  // namespace fsdp::detail
