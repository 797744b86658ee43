#include "files/element_difference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "files/safetensors.h"
#include "files/tensor_info.h"

namespace fsdp::detail {

namespace {

template <class T>
T loaded_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The value of a sign, `exponent_bits` and `mantissa_bits`, as in IEEE 754.
double small_float(unsigned bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits) & 1) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
}

// The format without infinities: only all ones are a NaN.
double e4m3(unsigned bits) {
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  if ((bits & 0x78) != 0x78) return small_float(bits, 4, 3);
  return ((bits & 0x80) != 0 ? -1.0 : 1.0) * std::ldexp((bits & 7) + 8, 5);
}

double f16_at(const std::byte* at) { return small_float(loaded_as<uint16_t>(at), 5, 10); }
double bf16_at(const std::byte* at) { return small_float(loaded_as<uint16_t>(at), 8, 7); }
double e5m2_at(const std::byte* at) { return small_float(loaded_as<uint8_t>(at), 5, 2); }
double e4m3_at(const std::byte* at) { return e4m3(loaded_as<uint8_t>(at)); }
double f32_at(const std::byte* at) { return loaded_as<float>(at); }
double f64_at(const std::byte* at) { return loaded_as<double>(at); }

struct NumberKind {
  std::string_view dtype;
  size_t bytes;  // bytes of an element
  int parts;     // 2: complex
  double (*at)(const std::byte*);
};

const NumberKind* number_kind(std::string_view dtype) {
  static constexpr std::array<NumberKind, 8> kKinds{{{"F16", 2, 1, f16_at},
                                                     {"BF16", 2, 1, bf16_at},
                                                     {"F8_E5M2", 1, 1, e5m2_at},
                                                     {"F8_E4M3", 1, 1, e4m3_at},
                                                     {"F32", 4, 1, f32_at},
                                                     {"F64", 8, 1, f64_at},
                                                     {"C64", 8, 2, f32_at},
                                                     {kComplex128, 16, 2, f64_at}}};
  const auto* found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const NumberKind& one) { return one.dtype == dtype; });
  return found == kKinds.end() ? nullptr : found;
}

double apart(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double difference = std::abs(a - b);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

double apart(const NumberKind& kind, const std::byte* a, const std::byte* b) {
  const double first = apart(kind.at(a), kind.at(b));
  if (kind.parts == 1) return first;
  const size_t half = kind.bytes / 2;
  return std::hypot(first, apart(kind.at(a + half), kind.at(b + half)));
}

}  // namespace

bool has_difference(std::string_view dtype) { return number_kind(dtype) != nullptr; }

void add_difference(std::string_view dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                    ElementDifference& sum) {
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  const NumberKind* kind = number_kind(dtype);
  const size_t element = kind != nullptr ? kind->bytes : static_cast<size_t>(dtype_bytes(dtype));
  for (size_t at = 0; at < a.size(); at += element) {
    if (std::memcmp(a.data() + at, b.data() + at, element) == 0) continue;
    ++sum.elements;
    if (kind != nullptr) sum.largest = std::max(sum.largest, apart(*kind, a.data() + at, b.data() + at));
  }
}

}  // namespace fsdp::detail
