#include "files/cast_elements.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace fsdp::testing {
namespace {

using detail::cast_elements;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class To, class From>
To cast_one(const char* from, const From& value, const char* to, bool lost = false) {
  std::vector<std::byte> into;
  const auto found = cast_elements(from, std::as_bytes(std::span(&value, 1)), to, into);
  EXPECT_EQ(found.has_value(), lost);
  EXPECT_EQ(into.size(), sizeof(To));
  To result;
  std::memcpy(&result, into.data(), sizeof result);
  return result;
}

uint16_t half(float value, bool lost = false) { return cast_one<uint16_t>("F32", value, "F16", lost); }
uint16_t brain(float value, bool lost = false) { return cast_one<uint16_t>("F32", value, "BF16", lost); }

TEST(CastElements, HalfRoundsToNearestEven) {
  EXPECT_EQ(half(0.0F), 0x0000);
  EXPECT_EQ(half(-0.0F), 0x8000);
  EXPECT_EQ(half(1.0F), 0x3C00);
  EXPECT_EQ(half(-2.5F), 0xC100);
  EXPECT_EQ(half(1.0F + 0x1p-11F), 0x3C00);  // a tie: to even
  EXPECT_EQ(half(1.0F + 3 * 0x1p-11F), 0x3C02);
  EXPECT_EQ(half(1.0F + 0x1p-11F + 0x1p-20F), 0x3C01);
  EXPECT_EQ(half(65504.0F), 0x7BFF);
  EXPECT_EQ(half(0x1p-24F), 0x0001);  // the smallest
  EXPECT_EQ(half(0x1p-25F), 0x0000);
  EXPECT_EQ(half(0x1.8p-25F), 0x0001);
  EXPECT_EQ(half(kInfinity), 0x7C00);
  EXPECT_EQ(half(-kInfinity), 0xFC00);
  EXPECT_EQ(half(std::nanf("")) & 0x7E00, 0x7E00);
}

TEST(CastElements, BrainFloatRoundsToNearestEven) {
  EXPECT_EQ(brain(1.0F), 0x3F80);
  EXPECT_EQ(brain(1.0F + 0x1p-8F), 0x3F80);  // a tie: to even
  EXPECT_EQ(brain(1.0F + 3 * 0x1p-8F), 0x3F82);
  EXPECT_EQ(brain(1.0F + 0x1p-8F + 0x1p-20F), 0x3F81);
  EXPECT_EQ(brain(-70000.0F), 0xC789);
  EXPECT_EQ(brain(-kInfinity), 0xFF80);
  EXPECT_EQ(brain(std::nanf("")), 0x7FC0);
}

TEST(CastElements, TellsOfFiniteValuesThatBecomeInfinite) {
  EXPECT_EQ(half(65520.0F, true), 0x7C00);
  EXPECT_EQ(half(-1e6F, true), 0xFC00);
  EXPECT_EQ(brain(std::numeric_limits<float>::max(), true), 0x7F80);
  EXPECT_EQ((cast_one<float>("F64", 1e300, "F32", true)), kInfinity);
}

TEST(CastElements, EveryHalfAndBrainFloatComesBack) {
  for (uint32_t bits = 0; bits <= UINT16_MAX; ++bits)
    for (const char* dtype : {"F16", "BF16"}) {
      const auto small = static_cast<uint16_t>(bits);
      const auto wide = cast_one<double>(dtype, small, "F64");
      if (std::isnan(wide)) continue;
      EXPECT_EQ(cast_one<uint16_t>("F64", wide, dtype), small) << dtype << " " << bits;
      EXPECT_EQ(cast_one<float>(dtype, small, "F32"), wide);
    }
}

TEST(CastElements, KnowsWhatIsCast) {
  for (const char* dtype : {"F64", "F32", "F16", "BF16"}) EXPECT_TRUE(detail::is_castable(dtype));
  for (const char* dtype : {"I64", "C64", "F8_E4M3", "BOOL", ""}) EXPECT_FALSE(detail::is_castable(dtype));
}

}  // namespace
}  // namespace fsdp::testing
