#define FSDP_ADAMW_NAMESPACE adamw_with_scalar
#include "kernels/cpu/adamw_impl.h"

namespace fsdp::detail {

void adamw_scalar(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow) {
  adamw_with_scalar::run(arrays, count, numbers, narrow);
}

}  // namespace fsdp::detail
