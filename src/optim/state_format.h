// What LibTorch's optimizers and ours keep of a parameter, by PyTorch's names.
#pragma once

#include <fsdp/optimizer_format.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdp::detail {

// Null for an optimizer we do not know.
const OptimizerFormat* format_of(const torch::optim::Optimizer& optimizer);

// The tensors without which its next step fails, for a parameter that has a state, in a group with these
// options. Empty for an optimizer we do not know.
std::vector<std::string> needed_moments(const torch::optim::Optimizer& optimizer,
                                        const OptimizerFormat::Numbers& options);

// The dtype in which it makes moments of `param`, whose .grad() is `gradient`, in a group with these options.
// None for an optimizer we do not know. Throws c10::Error where fsdp::AdamW was given one that does not fit.
std::optional<at::ScalarType> dtype_of_moments(const torch::optim::Optimizer& optimizer,
                                               const OptimizerFormat::Numbers& options,
                                               const at::Tensor& param, at::ScalarType gradient);

// Bytes of all its states; 0 for an optimizer we do not know.
int64_t state_bytes(const torch::optim::Optimizer& optimizer);

}  // namespace fsdp::detail
