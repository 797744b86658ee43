#define FSDP_SQUARES_NAMESPACE squares_scalar
#include "kernels/cpu/square_sum_impl.h"

#include "kernels/cpu/square_sum.h"

namespace fsdp::detail {

double square_sum_scalar(const float* values, size_t count) { return squares_scalar::run(values, count); }

}  // namespace fsdp::detail
