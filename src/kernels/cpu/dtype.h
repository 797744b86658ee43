// The element types that the kernels know, the same as Comm's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::detail {

enum class DType : uint8_t { f32, f64, bf16, f16, i64, u8 };

constexpr size_t size_of(DType type) {
  switch (type) {
    case DType::f32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr const char* to_string(DType type) {
  switch (type) {
    case DType::f32:
      return "fp32";
    case DType::f64:
      return "fp64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::i64:
      return "int64";
    case DType::u8:
      return "uint8";
  }
  return "unknown";
}

}  // namespace fsdp::detail
