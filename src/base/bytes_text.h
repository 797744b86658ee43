// Formats numbers of bytes for people.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::detail {

// "1.5 GiB", "12.0 MiB" or "0.3 KiB".
std::string bytes_text(int64_t bytes);

}  // namespace fsdp::detail
