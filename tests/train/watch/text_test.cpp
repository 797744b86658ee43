#include "trainer/watch/text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdp::watch {
namespace {

TEST(WatchText, CountsHaveThreeDigits) {
  EXPECT_EQ(short_count(0), "0");
  EXPECT_EQ(short_count(987), "987");
  EXPECT_EQ(short_count(999.6), "1.00k");
  EXPECT_EQ(short_count(12345), "12.3k");
  EXPECT_EQ(short_count(999999), "1.00M");
  EXPECT_EQ(short_count(1.73e9), "1.73B");
  EXPECT_EQ(short_count(-4200), "-4.20k");
  EXPECT_EQ(short_count(NAN), "nan");
}

TEST(WatchText, GroupsDigits) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1048576), "1,048,576");
  EXPECT_EQ(grouped(-1000), "-1,000");
}

TEST(WatchText, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(29.3 * (1 << 30)), "29.3 GiB");
  EXPECT_EQ(bytes_text(139.0 * (1 << 30)), "139 GiB");
}

TEST(WatchText, Durations) {
  EXPECT_EQ(clock_text(7), "0:07");
  EXPECT_EQ(clock_text(754), "12:34");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(183840), "2d 03:04");
  EXPECT_EQ(clock_text(-1), "?");
  EXPECT_EQ(clock_text(NAN), "?");
  EXPECT_EQ(clock_text(INFINITY), "?");
  EXPECT_EQ(seconds_text(0.00085), "850 us");
  EXPECT_EQ(seconds_text(0.00125), "1.25 ms");
  EXPECT_EQ(seconds_text(3.2), "3.20 s");
  EXPECT_EQ(seconds_text(120), "120 s");
}

TEST(WatchText, Losses) {
  EXPECT_EQ(loss_text(2.34567), "2.3457");
  EXPECT_EQ(loss_text(10.98765), "10.988");
  EXPECT_EQ(loss_text(1e-5), "1.000e-05");
  EXPECT_EQ(loss_text(NAN), "nan");
  EXPECT_EQ(loss_text(-INFINITY), "-inf");
}

}  // namespace
}  // namespace fsdp::watch
