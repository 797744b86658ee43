#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "app/report/report.h"
#include "support/temp_folder.h"

namespace fsdp::report {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

constexpr const char* kEval = R"({"kind":"eval","time":1,"step":5,"loss":1.5,"tokens":8})";

class ReadRun : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(temp_ / "metrics.jsonl") << text; }
  void refused(const std::string& folder, const std::string& why) {
    EXPECT_THAT([&] { read_run(folder); }, ThrowsMessage<NothingToReport>(HasSubstr(why)));
  }
  testing::TempFolder temp_;
};

TEST_F(ReadRun, ReadsRecordsAndConfig) {
  write(std::string(kEval) + "\n");
  std::ofstream(temp_ / "config.yaml") << "a: 1\n";
  const report::Run run = read_run(temp_.path());
  EXPECT_THAT(run.metrics.evals, SizeIs(1));
  EXPECT_EQ(run.config, "a: 1\n");
}

TEST_F(ReadRun, ATornLastLineIsANoteOnThePage) {
  write(std::string(kEval) + "\n{\"kind\":\"eval\",\"ti");
  const report::Run run = read_run(temp_.path());
  EXPECT_THAT(run.metrics.evals, SizeIs(1));
  EXPECT_EQ(run.config, std::nullopt);
  EXPECT_THAT(page(run), HasSubstr(":2: skipped: the last line is not complete"));
}

TEST_F(ReadRun, RefusesWhatHasNothingToReport) {
  refused(temp_ / "no", "does not exist");
  refused(temp_.path(), "has no metrics.jsonl");
  write("");
  refused(temp_.path(), "is empty: the run has not started to train yet");
  write("nonsense\n");
  refused(temp_.path(), ":1: skipped: this is no JSON");
  refused(temp_ / "metrics.jsonl", "is a file; the folder of a run is expected");
}

TEST_F(ReadRun, WritesAFileWholeOrNotAtAll) {
  write_whole(temp_ / "report.html", "new");
  std::filesystem::create_directory(temp_ / "folder");
  EXPECT_THROW(write_whole(temp_ / "folder", "new"), IoError);
  EXPECT_THROW(write_whole(temp_ / "no/report.html", "new"), IoError);
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(temp_.path())) ++files;
  EXPECT_EQ(files, 2U) << "nothing is left of the attempts";
}

}  // namespace
}  // namespace fsdp::report
