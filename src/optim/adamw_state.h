// AdamW's state of a parameter, and the memory it lies in.
#pragma once

#include <torch/optim/adamw.h>

#include <optional>

namespace fsdp::detail {

struct UnitRegion;

// The region that `param` is a slice of; null: it is no slice.
UnitRegion* region_of_slice(const at::Tensor& param);

// The dtype of moments of `param`. `wanted`: the optimizer's setting; none: the parameter's dtype. Throws
// c10::Error for a dtype that does not fit.
at::ScalarType moment_type(const at::Tensor& param, std::optional<at::ScalarType> wanted);

// A tensor over the memory of `moment` whose operators are observed: reading it waits for promised updates,
// and writing it also waits for a background save.
at::Tensor watched_moment(UnitRegion& region, const at::Tensor& moment);
// True if all operators that write to it are observed.
bool is_watched_moment(const at::Tensor& moment);

// A moment of zeros, in the memory for moments of `param`; observed if `param` is a slice of a model.
at::Tensor zero_moment(const at::Tensor& param, at::ScalarType type);

// The state of `param`, created if there is none. `moments`: as in moment_type().
torch::optim::AdamWParamState& adamw_state(torch::optim::Optimizer& optimizer, const at::Tensor& param,
                                           std::optional<at::ScalarType> moments, bool amsgrad);

}  // namespace fsdp::detail
