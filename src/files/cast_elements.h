// Casts elements of one floating-point dtype to another.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace fsdp::detail {

// True for F64, F32, F16 and BF16.
bool is_castable(std::string_view dtype);

// Writes whole elements of `from` to `into` as `to`, rounded to nearest, ties to even: the bits of PyTorch's
// Tensor::to. Returns the first finite value that overflows `to`; `into` has an infinity there.
std::optional<double> cast_elements(std::string_view from, std::span<const std::byte> elements,
                                    std::string_view to, std::vector<std::byte>& into);

}  // namespace fsdp::detail
