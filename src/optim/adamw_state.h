// What AdamW keeps of a parameter, and where.
#pragma once

#include <torch/optim/adamw.h>

#include <optional>

namespace fsdp::detail {

struct UnitRegion;

// That `param` is a slice of; null: it is no slice.
UnitRegion* region_of_slice(const at::Tensor& param);

// The dtype of moments of `param`. `wanted`: as the optimizer was told; none: the parameter's. Throws
// c10::Error for one that does not fit.
at::ScalarType moment_type(const at::Tensor& param, std::optional<at::ScalarType> wanted);

// A tensor over the memory of `moment` whose operators are seen: those that touch it wait for updates that
// are promised, and those that write to it for a save in the background.
at::Tensor watched_moment(UnitRegion& region, const at::Tensor& moment);
// Whether all operators that write to it are seen.
bool is_watched_moment(const at::Tensor& moment);

// A moment of zeros, where moments of `param` lie; watched if `param` is a slice of a model.
at::Tensor zero_moment(const at::Tensor& param, at::ScalarType type);

// Made where there is none. `moments`: as moment_type() takes it.
torch::optim::AdamWParamState& adamw_state(torch::optim::Optimizer& optimizer, const at::Tensor& param,
                                           std::optional<at::ScalarType> moments, bool amsgrad);

}  // namespace fsdp::detail
