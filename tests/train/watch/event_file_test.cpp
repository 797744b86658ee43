#include "trainer/watch/event_file.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "support/temp_folder.h"
#include "trainer/watch/crc32c.h"

namespace fsdp::watch {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

template <typename T>
T number_at(const std::string& bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// The messages of a record file, whose frames it checks.
std::vector<std::string> messages_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = text.str();
  std::vector<std::string> messages;
  for (size_t at = 0; at < bytes.size();) {
    const auto length = number_at<uint64_t>(bytes, at);
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 8), masked_crc32c(bytes.substr(at, 8)));
    messages.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 12 + length), masked_crc32c(messages.back()));
    at += 16 + length;
  }
  return messages;
}

TEST(EventFile, BeginsWithTheVersionAndTheStartOfASession) {
  const testing::TempFolder temp;
  const EventFile file(temp.path());
  EXPECT_THAT(file.path(), HasSubstr(temp.path() + "/events.out.tfevents."));
  const auto messages = messages_of(file.path());
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_THAT(messages[0], HasSubstr("\x1a\x0d"
                                     "brain.Event:2"));
  EXPECT_EQ(messages[1].substr(9), std::string("\x10\0\x3a\x02\x08\x01", 6))
      << "step 0, session_log { START }";
}

TEST(EventFile, AScalarIsTheBytesOfProtobuf) {
  const testing::TempFolder temp;
  EventFile file(temp.path());
  const Scalar loss{"loss", 0.5};
  file.scalars(300, {&loss, 1}, 2.0);
  const std::string expected(
      "\x09\0\0\0\0\0\0\0\x40"  // wall_time = 2.0
      "\x10\xac\x02"            // step = 300
      "\x2a\x0d\x0a\x0b"        // summary { value {
      "\x0a\x04loss"            // tag
      "\x15\0\0\0\x3f",         // simple_value = 0.5
      27);
  EXPECT_EQ(messages_of(file.path()).at(2), expected);
}

TEST(EventFile, AllScalarsOfAStepAreOneRecord) {
  const testing::TempFolder temp;
  EventFile file(temp.path());
  const std::vector<Scalar> values{{"loss", 1}, {"lr", 2}, {"time/forward", 3}};
  file.scalars(1, values);
  EXPECT_THAT(messages_of(file.path()), SizeIs(3));
}

TEST(EventFile, AResumedRunStartsASessionAfterItsStep) {
  const testing::TempFolder temp;
  const EventFile file(temp.path(), 9);
  const auto messages = messages_of(file.path());
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_EQ(messages[1].substr(9), std::string("\x10\x0a\x3a\x02\x08\x01", 6))
      << "step 10, session_log { START }";
}

TEST(EventFile, FilesOfOneSecondHaveDifferentNames) {
  const testing::TempFolder temp;
  const EventFile first(temp.path()), second(temp.path()), third(temp.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_NE(second.path(), third.path());
}

TEST(EventFile, RefusesAFolderThatDoesNotExist) { EXPECT_THROW(EventFile("/does/not/exist"), IoError); }

}  // namespace
}  // namespace fsdp::watch
