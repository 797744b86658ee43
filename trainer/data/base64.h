// Bytes written as base64.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

// nullopt: `text` is not base64 with its padding.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace fsdp::data
