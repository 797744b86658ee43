#include "trainer/watch/wandb.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "support/temp_folder.h"

namespace fsdp::watch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;

class WandbProblem : public ::testing::Test {
 protected:
  // A program that stands for Python: prints `words` and fails.
  std::string python_that_says(const std::string& words) {
    const std::string path = temp_ / "python";
    std::ofstream(path) << "#!/bin/sh\nprintf '%b' '" << words << "' >&2\nexit 1\n";
    ::chmod(path.c_str(), 0755);
    return path;
  }

  testing::TempFolder temp_;
};

TEST_F(WandbProblem, NamesThePythonThatIsMissing) {
  EXPECT_THAT(wandb_problem("/does/not/exist/python3"),
              Optional(AllOf(HasSubstr("`/does/not/exist/python3` cannot be started: No such file"),
                             HasSubstr("--set wandb.use_wandb=false"))));
}

TEST_F(WandbProblem, SaysTheLineToType) {
  const std::string python = python_that_says("package\\n");
  EXPECT_THAT(wandb_problem(python), Optional(HasSubstr("Type `" + python + " -m pip install wandb`")));
  python_that_says("wandb: warning\\nlogin\\n");
  EXPECT_THAT(wandb_problem(python, true), Optional(HasSubstr("Type `" + python + " -m wandb login`")));
  python_that_says("old 3.7\\n");
  EXPECT_THAT(wandb_problem(python),
              Optional(HasSubstr("Python 3.9 or newer, but `" + python + "` is Python 3.7")));
}

TEST_F(WandbProblem, ShowsTheErrorOfABrokenPackage) {
  EXPECT_THAT(wandb_problem(python_that_says("Traceback:\\nImportError: no urllib\\n")),
              Optional(HasSubstr("does not work in `" + temp_ / "python" + "`: ImportError: no urllib")));
}

TEST_F(WandbProblem, AProgramThatSucceedsIsNoProblem) { EXPECT_EQ(wandb_problem("true"), std::nullopt); }

}  // namespace
}  // namespace fsdp::watch
