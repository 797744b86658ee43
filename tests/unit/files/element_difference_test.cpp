#include "files/element_difference.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

namespace fsdp::detail {
namespace {

template <class T>
ElementDifference difference(std::string_view dtype, std::vector<T> a, std::vector<T> b) {
  ElementDifference sum;
  add_difference(dtype, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)), sum);
  return sum;
}

// One element against zero: how far it is, is its value.
template <class T>
double magnitude(std::string_view dtype, T bits) {
  return difference<T>(dtype, {bits}, {0}).largest;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(ElementDifference, CountsElementsAndFindsTheLargest) {
  const auto found = difference<float>("F32", {1, 2, 3, 4}, {1, 2.5F, 3, -4});
  EXPECT_EQ(found.elements, 2);
  EXPECT_EQ(found.largest, 8);
  EXPECT_EQ(difference<double>("F64", {1, 1e300}, {1, -1e300}).largest, 2e300);
  EXPECT_EQ(difference<float>("F32", {1, 2}, {1, 2}).elements, 0);
}

TEST(ElementDifference, AddsUp) {
  ElementDifference sum;
  const std::vector<float> a{1, 5}, b{2, 5};
  for (int i = 0; i < 3; ++i)
    add_difference("F32", std::as_bytes(std::span(a)), std::as_bytes(std::span(b)), sum);
  EXPECT_EQ(sum.elements, 3);
  EXPECT_EQ(sum.largest, 1);
}

TEST(ElementDifference, ReadsSmallFloats) {
  EXPECT_EQ(magnitude<uint16_t>("F16", 0x3c00), 1);
  EXPECT_EQ(magnitude<uint16_t>("F16", 0xc100), 2.5);
  EXPECT_EQ(magnitude<uint16_t>("F16", 0x7bff), 65504);
  EXPECT_EQ(magnitude<uint16_t>("F16", 0x0001), 0x1p-24);
  EXPECT_EQ(magnitude<uint16_t>("F16", 0x7c00), kInfinity);
  EXPECT_EQ(magnitude<uint16_t>("BF16", 0x3f80), 1);
  EXPECT_EQ(magnitude<uint16_t>("BF16", 0xc020), 2.5);
  EXPECT_EQ(magnitude<uint16_t>("BF16", 0x0001), 0x1p-133);
  EXPECT_EQ(magnitude<uint8_t>("F8_E5M2", 0x3c), 1);
  EXPECT_EQ(magnitude<uint8_t>("F8_E5M2", 0x7b), 57344);
  EXPECT_EQ(magnitude<uint8_t>("F8_E5M2", 0x7c), kInfinity);
  EXPECT_EQ(magnitude<uint8_t>("F8_E4M3", 0x38), 1);
  EXPECT_EQ(magnitude<uint8_t>("F8_E4M3", 0x7e), 448);
  EXPECT_EQ(magnitude<uint8_t>("F8_E4M3", 0xf8), 256);
  EXPECT_EQ(magnitude<uint8_t>("F8_E4M3", 0x01), 0x1p-9);
  EXPECT_EQ(magnitude<uint8_t>("F8_E4M3", 0x7f), kInfinity);
}

TEST(ElementDifference, NaNsAndZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(difference<float>("F32", {nan}, {1}).largest, kInfinity);
  EXPECT_EQ(difference<uint32_t>("F32", {0x7fc00000}, {0x7fc00001}).largest, 0);
  EXPECT_EQ(difference<uint32_t>("F32", {0x7fc00000}, {0x7fc00001}).elements, 1);
  EXPECT_EQ(difference<float>("F32", {0.0F}, {-0.0F}).elements, 1);
  EXPECT_EQ(difference<float>("F32", {0.0F}, {-0.0F}).largest, 0);
}

TEST(ElementDifference, ComplexAndIntegers) {
  const auto found = difference<float>("C64", {1, 2, 5, 5}, {4, 6, 5, 5});
  EXPECT_EQ(found.elements, 1);
  EXPECT_EQ(found.largest, 5);
  EXPECT_EQ(difference<double>("C128", {1, 2}, {4, 6}).largest, 5);
  EXPECT_EQ(difference<int64_t>("I64", {1, 2}, {1, 3}).elements, 1);
  EXPECT_FALSE(has_difference("I64"));
  EXPECT_FALSE(has_difference("BOOL"));
  for (const char* dtype : {"F16", "BF16", "F32", "F64", "F8_E5M2", "F8_E4M3", "C64", "C128"})
    EXPECT_TRUE(has_difference(dtype));
}

}  // namespace
}  // namespace fsdp::detail
