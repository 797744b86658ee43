#define FSDP_SQUARES_NAMESPACE squares_avx2
#include "kernels/cpu/square_sum_impl.h"

#include "kernels/cpu/square_sum.h"

namespace fsdp::detail {

double square_sum_avx2(const float* values, size_t count) { return squares_avx2::run(values, count); }

}  // namespace fsdp::detail
