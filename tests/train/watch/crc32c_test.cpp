#include "trainer/watch/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdp::watch {
namespace {

// The vectors of RFC 3720, B.4.
TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string rising;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  EXPECT_EQ(crc32c(rising), 0x46dd794eU);
}

// The length of the first record of every event file of TensorBoard, and the checksum TensorFlow stores.
TEST(Crc32c, MaskedAsInRecordFiles) {
  EXPECT_EQ(masked_crc32c(std::string("\x18\0\0\0\0\0\0\0", 8)), 0x224b7fa3U);
}

}  // namespace
}  // namespace fsdp::watch
