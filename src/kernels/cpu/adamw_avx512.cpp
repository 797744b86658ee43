// gcc's own intrinsics leave registers undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define FSDP_ADAMW_NAMESPACE adamw_with_avx512
#include "kernels/cpu/adamw_impl.h"

namespace fsdp::detail {

void adamw_avx512(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow) {
  adamw_with_avx512::run(arrays, count, numbers, narrow);
}

}  // namespace fsdp::detail
