// Finds the best instruction set that this processor has and kernels were compiled for.
#pragma once

#include <cstdint>

namespace fsdp::detail {

enum class Isa : uint8_t { scalar, avx2, avx512 };

// The best instruction set that was compiled (CMake's FSDP_SIMD) and that this processor has. The environment
// variable FSDP_SIMD=scalar or avx2 is an upper limit.
Isa best_isa();

}  // namespace fsdp::detail
