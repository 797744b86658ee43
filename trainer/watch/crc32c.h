// CRC-32C, the checksum of TensorFlow's record files.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp::watch {

uint32_t crc32c(std::string_view bytes);
// As record files store it: rotated, and a constant added.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace fsdp::watch
