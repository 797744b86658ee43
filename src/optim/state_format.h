// The state that LibTorch's optimizers and ours keep of a parameter, by PyTorch's names.
#pragma once

#include <fsdp/optimizer_format.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdp::detail {

// Null for an optimizer that is not known.
const OptimizerFormat* format_of(const torch::optim::Optimizer& optimizer);

// The tensors without which the optimizer's next step fails, for a parameter that has a state, in a group
// with these options. Empty for an optimizer that is not known.
std::vector<std::string> needed_moments(const torch::optim::Optimizer& optimizer,
                                        const OptimizerFormat::Numbers& options);

// The dtype in which the optimizer makes moments of `param`, whose .grad() is `gradient`, in a group with
// these options; none if the optimizer is not known. Throws c10::Error if fsdp::AdamW's own does not fit.
std::optional<at::ScalarType> dtype_of_moments(const torch::optim::Optimizer& optimizer,
                                               const OptimizerFormat::Numbers& options,
                                               const at::Tensor& param, at::ScalarType gradient);

// Bytes of all the optimizer's states; 0 for an optimizer that is not known, without a `format`.
int64_t state_bytes(const torch::optim::Optimizer& optimizer, const OptimizerFormat* format = nullptr);

}  // namespace fsdp::detail
