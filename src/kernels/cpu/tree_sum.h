// Sums of several arrays along a fixed tree, so that the bits do not depend on the order of arrival.
#pragma once

#include <cstddef>

#include "kernels/cpu/dtype.h"

namespace fsdp::detail {

// Note [The tree of sums]
// sum(0..n) = sum(0..m) + sum(m..n), where m is the largest power of two below n: neighbours are added in
// pairs, then pairs of pairs, and an odd one waits. For powers of two this is the balanced binary tree over
// the index; the first 2^k leaves always form a subtree, so a tree over ranks can be the lower levels of a
// tree over microbatches. bf16 and fp16 are widened to fp32, summed, scaled and rounded once; every other
// type is summed in its own type (integers wrap, and their scale must be 1). All code paths (scalar, AVX2,
// AVX-512) do the same operations in the same order.

// dst[i] = scale * sum over k of src[k][i], for i < count. `dst` may be one of the sources. `sources` >= 1.
using TreeSum = void (*)(void* dst, const void* const* src, int sources, size_t count, DType type,
                         double scale);

void tree_sum(void* dst, const void* const* src, int sources, size_t count, DType type, double scale);

void tree_sum_scalar(void* dst, const void* const* src, int sources, size_t count, DType type, double scale);
void tree_sum_avx2(void* dst, const void* const* src, int sources, size_t count, DType type, double scale);
void tree_sum_avx512(void* dst, const void* const* src, int sources, size_t count, DType type, double scale);

// The best path that was compiled (CMake's FSDP_SIMD) and that this processor has. The environment variable
// FSDP_SIMD=scalar or avx2 is an upper limit.
struct SumPath {
  const char* name;
  TreeSum run;
};
SumPath choose_sum_path();

}  // namespace fsdp::detail
