#define FSDP_SUM_NAMESPACE sum_avx512
#include "kernels/cpu/tree_sum_impl.h"

namespace fsdp::detail {

void tree_sum_avx512(void* dst, const void* const* src, int sources, size_t count, DType type, double scale) {
  sum_avx512::run(dst, src, sources, count, type, scale);
}

}  // namespace fsdp::detail
