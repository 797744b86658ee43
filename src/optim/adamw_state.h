// What AdamW keeps of a parameter, and where.
#pragma once

#include <torch/optim/adamw.h>

#include <optional>

namespace fsdp::detail {

struct UnitRegion;

// That `param` is a slice of; null: it is no slice.
UnitRegion* region_of_slice(const at::Tensor& param);

// A moment of zeros, where moments of `param` lie.
at::Tensor zero_moment(const at::Tensor& param, at::ScalarType type);

// Made where there is none. `moments`: their dtype; none: the parameter's. Throws c10::Error for one that
// does not fit.
torch::optim::AdamWParamState& adamw_state(torch::optim::Optimizer& optimizer, const at::Tensor& param,
                                           std::optional<at::ScalarType> moments, bool amsgrad);

}  // namespace fsdp::detail
