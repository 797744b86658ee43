// Promise: a failed rank leaves its message where its launcher looks for it, as JSON that any parser reads.
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/ranks.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

// The file that TORCHELASTIC_ERROR_FILE names while this lives.
class ErrorFile {
 public:
  nlohmann::json read() const {
    std::ifstream file(path_);
    return nlohmann::json::parse(file);  // throws for bytes that are not UTF-8
  }
  std::string message() const { return read().at("message").at("message"); }
  bool exists() const { return std::filesystem::exists(path_); }

 private:
  TempFolder folder_;
  std::string path_ = folder_ / "error.json";
  ScopedEnv variable_{"TORCHELASTIC_ERROR_FILE", path_.c_str()};
};

TEST(ErrorFile, HasMessageTimeAndCulprit) {
  const ErrorFile file;
  write_error_file("rank 3 died");
  EXPECT_EQ(file.message(), "rank 3 died");
  const auto extra = file.read().at("message").at("extraInfo");
  EXPECT_GT(std::stoll(extra.at("timestamp").get<std::string>()), 1700000000);
  EXPECT_FALSE(extra.contains("culprit"));
  write_error_file("rank 3 died", 3);
  EXPECT_EQ(file.read().at("message").at("extraInfo").at("culprit"), 3);
}

TEST(ErrorFile, KeepsAnyMessageReadable) {
  const ErrorFile file;
  for (const char* text : {"a \"quoted\" \\ path", "two\nlines\tand \x01", "größer, 日本語, 🙂", ""}) {
    write_error_file(text);
    EXPECT_EQ(file.message(), text);
  }
  const std::string mark = "\xEF\xBF\xBD";  // U+FFFD
  for (const auto& [bytes, shown] : std::vector<std::pair<std::string, std::string>>{
           {"a\xFFz", "a" + mark + "z"},
           {"a\xC3", "a" + mark},
           {"\xC0\x80", mark + mark},             // a NUL, too long
           {"\xE0\x80\x80", mark + mark + mark},  // too long
           {"\xED\xA0\x80", mark + mark + mark},  // half of a surrogate pair
           {"\xF0\x80\x80\x80", mark + mark + mark + mark},
           {"\xF4\x90\x80\x80", mark + mark + mark + mark}}) {  // beyond U+10FFFF
    write_error_file(bytes);
    EXPECT_EQ(file.message(), shown);
  }
}

TEST(ErrorFile, DoesNothingWithoutAFileToWriteTo) {
  {
    const ScopedEnv unset("TORCHELASTIC_ERROR_FILE", nullptr);
    EXPECT_NO_THROW(write_error_file("lost"));
  }
  const ScopedEnv nowhere("TORCHELASTIC_ERROR_FILE", "/no/such/folder/error.json");
  EXPECT_NO_THROW(write_error_file("lost"));
}

TEST(ErrorFile, IsWrittenByRunMain) {
  const ErrorFile file;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_main([] {}), 0);
  EXPECT_FALSE(file.exists()) << "nothing failed";
  EXPECT_EQ(run_main([] { throw std::runtime_error("no such file"); }), 1);
  EXPECT_EQ(file.message(), "no such file");
  EXPECT_EQ(run_main([] { TORCH_CHECK(false, "sizes differ"); }), 1);
  EXPECT_EQ(file.message(), "sizes differ") << "without a stack trace";
  CommError::Details fault;
  fault.culprit = 2;
  EXPECT_EQ(run_main([&] { throw CommError(fault); }), 1);
  EXPECT_EQ(file.read().at("message").at("extraInfo").at("culprit"), 2);
  ::testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace fsdp::testing
