#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/temp_folder.h"
#include "trainer/watch/metrics_writer.h"
#include "trainer/watch/read_metrics.h"

namespace fsdp::watch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

StepRecord step_of(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = static_cast<double>(step);
  return record;
}

class MetricsFile : public ::testing::Test {
 protected:
  void write_steps(int64_t from, int64_t to) {
    MetricsWriter writer(path_);
    for (int64_t step = from; step <= to; ++step) writer.write(step_of(step));
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const StepRecord& one : read_metrics(path_).steps) steps.push_back(one.step);
    return steps;
  }
  std::string text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  testing::TempFolder temp_;
  std::string path_ = temp_ / "metrics.jsonl";
};

TEST_F(MetricsFile, ALineIsThereWhenWriteReturns) {
  MetricsWriter writer(path_);
  for (int64_t step = 1; step <= 3; ++step) {
    writer.write(step_of(step));
    EXPECT_EQ(text().back(), '\n');
    EXPECT_THAT(steps(), SizeIs(static_cast<size_t>(step)));
  }
}

TEST_F(MetricsFile, TheWriterFillsInTheTime) {
  MetricsWriter writer(path_);
  writer.write(step_of(1));
  StepRecord timed = step_of(2);
  timed.time = 5;
  writer.write(timed);
  EXPECT_NEAR(read_metrics(path_).steps.at(0).time, seconds_since_1970(), 60);
  EXPECT_EQ(read_metrics(path_).steps.at(1).time, 5);
}

TEST_F(MetricsFile, ATornLastLineIsSkippedWithANote) {
  write_steps(1, 3);
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 5);
  EXPECT_THAT(steps(), ElementsAre(1, 2));
  EXPECT_THAT(read_metrics(path_).notes,
              ElementsAre(HasSubstr(path_ + ":3: skipped: the last line is not complete")));
}

TEST_F(MetricsFile, TheNextWriterCutsATornLineOff) {
  for (const int cut : {1, 5, 100}) {
    std::filesystem::remove(path_);
    write_steps(1, 3);
    std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - static_cast<size_t>(cut));
    write_steps(3, 4);
    EXPECT_THAT(steps(), ElementsAre(1, 2, 3, 4)) << cut;
    EXPECT_THAT(read_metrics(path_).notes, IsEmpty());
  }
}

TEST_F(MetricsFile, ATornLineLongerThanABlockIsCutOff) {
  write_steps(1, 2);
  std::ofstream(path_, std::ios::app) << std::string(10000, 'x');
  write_steps(3, 3);
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
  EXPECT_EQ(text().find('x'), std::string::npos);
}

TEST_F(MetricsFile, AFileOfOneTornLineBecomesEmpty) {
  std::ofstream(path_) << "{\"kind\":";
  MetricsWriter writer(path_);
  EXPECT_EQ(text(), "");
}

TEST_F(MetricsFile, BadLinesAreSkippedWithNotesThatSayWhere) {
  std::ofstream(path_) << "nonsense\n" << to_json(step_of(1)) << "\n\n{\"kind\":\"step\"}\n";
  EXPECT_THAT(steps(), ElementsAre(1));
  EXPECT_THAT(read_metrics(path_).notes, ElementsAre(HasSubstr(":1: skipped: this is no JSON"),
                                                     HasSubstr(":4: skipped: the member \"time\"")));
}

TEST_F(MetricsFile, AFileOfNonsenseGivesFewNotes) {
  std::ofstream file(path_);
  for (int i = 0; i < 1000; ++i) file << "nonsense\n";
  file.close();
  EXPECT_THAT(read_metrics(path_).notes, SizeIs(21));
  EXPECT_THAT(read_metrics(path_).notes.back(), HasSubstr("980 more lines were skipped"));
}

TEST_F(MetricsFile, AResumeSupersedesLaterSteps) {
  write_steps(1, 5);
  {
    MetricsWriter writer(path_);
    writer.write(EvalRecord{.step = 2});
    writer.write(EvalRecord{.step = 4});
    writer.write(CheckpointRecord{.step = 4});
    writer.write(MemoryRecord{.step = 4});
    writer.write(UnitsRecord{.step = 4});
    writer.write(EventRecord{.step = 5, .text = "rank 1 was killed"});
    writer.write(ResumeRecord{.step = 3});
    writer.write(step_of(4));
  }
  const RunMetrics metrics = read_metrics(path_);
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(metrics.superseded_steps, 2);
  EXPECT_THAT(metrics.evals, SizeIs(1));
  EXPECT_THAT(metrics.checkpoints, IsEmpty());
  EXPECT_THAT(metrics.memory, IsEmpty());
  EXPECT_THAT(metrics.units, IsEmpty());
  ASSERT_THAT(metrics.events, SizeIs(1));
  EXPECT_TRUE(metrics.events[0].superseded);
  EXPECT_THAT(metrics.resumes, SizeIs(1));
  EXPECT_NE(text().find("\"step\":5"), std::string::npos) << "the file keeps every line";
}

TEST_F(MetricsFile, ResumesFromTheSameStepAddUp) {
  for (int i = 0; i < 3; ++i) {
    write_steps(3, 5);
    MetricsWriter(path_).write(ResumeRecord{.step = 2});
  }
  EXPECT_THAT(steps(), IsEmpty());
  EXPECT_EQ(read_metrics(path_).superseded_steps, 9);
}

TEST_F(MetricsFile, AKilledWriterLeavesWholeLines) {
  for (int round = 0; round < 5; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      MetricsWriter writer(path_);
      for (int64_t step = 1;; ++step) writer.write(step_of(step));
    }
    ::usleep(20000);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_THAT(read_metrics(path_).notes, IsEmpty());
    EXPECT_THAT(steps(), ::testing::Not(IsEmpty()));
  }
}

// The limit on a file's size cuts a write short, as a full disk does.
TEST_F(MetricsFile, AFullDiskIsAnErrorAndLeavesWholeLines) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_steps(1, 100);
    } catch (const IoError&) {
      ::_exit(42);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_EQ(text().back(), '\n');
  EXPECT_THAT(read_metrics(path_).notes, IsEmpty());
}

TEST_F(MetricsFile, RefusesAFolderThatDoesNotExist) {
  EXPECT_THROW(MetricsWriter(temp_ / "no/metrics.jsonl"), IoError);
  EXPECT_THROW(read_metrics(temp_ / "no/metrics.jsonl"), IoError);
  EXPECT_THROW(read_metrics(temp_.path()), IoError) << "a folder is no file";
}

}  // namespace
}  // namespace fsdp::watch
