// Promise: the same off the CPU. Ranks are processes, each on a toy device of its own.
#include <gtest/gtest.h>

#include "behaviour/toy_device.h"
#include "fuzz/sharded.h"
#include "support/gloo.h"
#include "support/ranks.h"

namespace fsdp::fuzz {
namespace {

// "" or what went wrong.
std::string outcome_there(const Program& program) {
  try {
    testing::run_processes(
        program.ranks,
        [&](World& world) {
          at::set_num_threads(1);
          const std::vector<Record> wanted = run_plain(program, /*other_device=*/true);
          CommOptions comm{.backend = BackendKind::c10d, .c10d = testing::make_toy_backend};
          comm.timeout = std::chrono::milliseconds(20000);
          run_sharded(program, world, wanted, comm);
        },
        c10::Device(c10::kPrivateUse1));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// The cycle goes over to another plan at the end of a backward, where what is in flight settles, and is then
// recorded anew, because a rank used more than that plan has.
TEST(OtherDeviceFuzz, ASumThatSettledWhenThePlanChangedIsPlannedAgain) {
  if (!testing::gloo_available()) GTEST_SKIP() << "built without gloo's headers (libgloo-dev)";
  const Program program{
      .ranks = 2,
      .net = {.width = 5, .blocks = 4, .tied = true, .integer = true},
      .wrap = Wrap(2),
      .optimizer = Optimizer(1),
      .share = true,
      .slots = 0,
      .replicate = 8,
      .actions = {{Do::gates, 4, 1}, {Do::input_gradients, 1, 7}, {Do::gates, 6, 2}, {Do::backward, 10, 2}}};
  EXPECT_EQ(outcome_there(program), "");
}

TEST(OtherDeviceFuzz, ProgramsGiveWhatThePlainLoopGives) {
  if (!testing::gloo_available()) GTEST_SKIP() << "built without gloo's headers (libgloo-dev)";
  const uint64_t first = testing::seed();
  const int count = testing::repeats(12, 300);
  int failed = 0;
  for (uint64_t s = first; s < first + static_cast<uint64_t>(count) && failed < 3; ++s) {
    Program program = generate(s, /*actions=*/30, /*other_device=*/true);
    const std::string wrong = outcome_there(program);
    if (wrong.empty()) continue;
    ++failed;
    // What comes after the action that failed is not needed.
    while (program.actions.size() > 1) {
      Program less = program;
      less.actions.pop_back();
      if (outcome_there(less).empty()) break;
      program = less;
    }
    ADD_FAILURE() << "seed " << s << ": " << wrong << "\n" << to_code(program);
  }
  std::cout << count << " programs on a toy device, " << failed << " failed\n";
}

}  // namespace
}  // namespace fsdp::fuzz
