#include "files/cast_elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/assert.h"

namespace fsdp::detail {

namespace {

constexpr uint32_t kSign = 0x8000'0000;

// Through floats: adding a number of the right size rounds as the hardware does.
struct F16 {
  using Bits = uint16_t;

  static float load(Bits half) {
    const uint32_t word = uint32_t{half} << 16, shifted = word << 1;
    const float normal = std::bit_cast<float>((shifted >> 4) + (0xE0U << 23)) * 0x1.0p-112F;
    const float subnormal = std::bit_cast<float>((shifted >> 17) | (126U << 23)) - 0.5F;
    const bool small = shifted < (1U << 27);
    return std::bit_cast<float>((word & kSign) | std::bit_cast<uint32_t>(small ? subnormal : normal));
  }

  static Bits store(double value) {
    const auto narrow = static_cast<float>(value);
    const auto word = std::bit_cast<uint32_t>(narrow), shifted = word << 1;
    const float base = (std::fabs(narrow) * 0x1.0p+112F) * 0x1.0p-110F;
    const uint32_t exponent = std::max(shifted & 0xFF00'0000U, 0x7100'0000U);
    const auto rounded = std::bit_cast<uint32_t>(std::bit_cast<float>((exponent >> 1) + 0x0780'0000U) + base);
    const uint32_t bits = ((rounded >> 13) & 0x7C00U) + (rounded & 0x0FFFU);
    return static_cast<Bits>((word & kSign) >> 16 | (shifted > 0xFF00'0000U ? 0x7E00U : bits));
  }
};

struct BF16 {
  using Bits = uint16_t;

  static float load(Bits bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

  static Bits store(double value) {
    if (std::isnan(value)) return 0x7FC0;
    const auto word = std::bit_cast<uint32_t>(static_cast<float>(value));
    return static_cast<Bits>((word + 0x7FFFU + ((word >> 16) & 1U)) >> 16);
  }
};

template <class T>
struct Native {
  using Bits = T;

  static T load(T value) { return value; }
  static T store(double value) { return static_cast<T>(value); }
};

template <class From, class To>
std::optional<double> cast(std::span<const std::byte> elements, std::vector<std::byte>& into) {
  const size_t count = elements.size() / sizeof(typename From::Bits);
  into.resize(count * sizeof(typename To::Bits));
  std::optional<double> lost;
  for (size_t i = 0; i < count; ++i) {
    typename From::Bits bits;
    std::memcpy(&bits, elements.data() + i * sizeof bits, sizeof bits);
    const double value = From::load(bits);
    const typename To::Bits stored = To::store(value);
    if (!lost && std::isfinite(value) && !std::isfinite(To::load(stored))) lost = value;
    std::memcpy(into.data() + i * sizeof stored, &stored, sizeof stored);
  }
  return lost;
}

template <class From>
std::optional<double> cast_from(std::span<const std::byte> elements, std::string_view to,
                                std::vector<std::byte>& into) {
  if (to == "F64") return cast<From, Native<double>>(elements, into);
  if (to == "F32") return cast<From, Native<float>>(elements, into);
  return to == "F16" ? cast<From, F16>(elements, into) : cast<From, BF16>(elements, into);
}

}  // namespace

bool is_castable(std::string_view dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

std::optional<double> cast_elements(std::string_view from, std::span<const std::byte> elements,
                                    std::string_view to, std::vector<std::byte>& into) {
  FSDP_ASSERT(is_castable(from) && is_castable(to));
  if (from == "F64") return cast_from<Native<double>>(elements, to, into);
  if (from == "F32") return cast_from<Native<float>>(elements, to, into);
  return from == "F16" ? cast_from<F16>(elements, to, into) : cast_from<BF16>(elements, to, into);
}

}  // namespace fsdp::detail
