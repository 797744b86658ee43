// Promise: the same off the CPU. Ranks are processes, each on a toy device of its own.
#include <gtest/gtest.h>

#include "behaviour/toy_device.h"
#include "fuzz/sharded.h"
#include "fuzz/smaller.h"
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

// Programs that once gave something else, as short as they could be made.
std::vector<Program> once_failed() {
  const Net four{.width = 4, .blocks = 4, .tied = true, .single = true};
  const Net three{.width = 8, .blocks = 3, .tied = true, .single = true};
  return {
      // A cycle without a plan reduced, and stepped, where cycles before had: a gradient came after it.
      {.ranks = 1,
       .net = {.width = 6, .blocks = 3, .single = true},
       .wrap = Wrap::sizes,
       .optimizer = Optimizer::fused_adamw,
       .share = false,
       .slots = 3,
       .again = true,
       .offload = 3,
       .in_backward = true,
       .actions = {{Do::backward, 7, 9}, {Do::backward, 11, 4}, {Do::backward, 10, 11}}},
      // The cycle goes over to another plan at the end of a backward, where what is in flight settles, and is
      // then recorded anew, because a rank used more than that plan has.
      {.ranks = 2,
       .net = {.width = 5, .blocks = 4, .tied = true, .integer = true},
       .wrap = Wrap::sizes,
       .optimizer = Optimizer::adamw,
       .slots = 0,
       .replicate = 8,
       .actions = {{Do::gates, 4, 1}, {Do::input_gradients, 1, 7}, {Do::gates, 6, 2}, {Do::backward, 10, 2}}},
      // A backward that follows a plan, and has gradients of inputs alone, was a step.
      {.ranks = 1,
       .net = three,
       .wrap = Wrap::whole,
       .optimizer = Optimizer::fused_adamw,
       .offload = 1,
       .in_backward = true,
       .actions = {{Do::backward, 6, 2}, {Do::input_gradients, 1, 11}}},
      // So was one that leaves its plan.
      {.ranks = 2,
       .net = four,
       .wrap = Wrap::blocks,
       .optimizer = Optimizer::fused_adamw,
       .replicate = 8,
       .offload = 5,
       .in_backward = true,
       .actions = {{Do::backward, 8, 3}, {Do::input_gradients, 0, 0}}},
      // Zeros were shown as gradients of what no rank had used.
      {.ranks = 2,
       .net = four,
       .wrap = Wrap::blocks,
       .replicate = 8,
       .actions = {{Do::backward, 8, 3}, {Do::zero_model}, {Do::inputs_alone}}},
      // Gradients that came in other parts than planned were refused.
      {.ranks = 1,
       .net = three,
       .wrap = Wrap::whole,
       .kind = Kind::shard_grad_op,
       .optimizer = Optimizer::fused_adamw,
       .replicate = 8,
       .prefetch = 1,
       .again = true,
       .offload = 1,
       .in_backward = true,
       .actions = {{Do::loop_inside, 3, 3}, {Do::backward, 11, 8}}},
      // So were those of two forwards, of which now the one and now the other is recomputed.
      {.ranks = 2,
       .net = {.width = 4, .blocks = 1, .single = true},
       .wrap = Wrap::cut,
       .optimizer = Optimizer::fused_adamw,
       .slots = 0,
       .again = true,
       .casts = true,
       .lists = 856,
       .offload = 1,
       .in_backward = true,
       .actions = {{Do::gate_in_one_of_two, 2, 2}, {Do::gate_in_one_of_two, 6, 11}}},
  };
}

TEST(OtherDeviceFuzz, WhatOnceFailedDoesNot) {
  if (!testing::gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  for (const Program& program : once_failed()) EXPECT_EQ(outcome_there(program), "") << to_code(program);
}

TEST(OtherDeviceFuzz, ProgramsGiveWhatThePlainLoopGives) {
  if (!testing::gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  const uint64_t first = testing::seed();
  const int count = testing::repeats(12, 300);
  int failed = 0;
  for (uint64_t s = first; s < first + static_cast<uint64_t>(count) && failed < 3; ++s) {
    const Program program = generate(s, /*actions=*/30, /*other_device=*/true);
    const std::string wrong = outcome_there(program);
    if (wrong.empty()) continue;
    ++failed;
    const Program small = smaller(program, [](const Program& less) { return !outcome_there(less).empty(); });
    ADD_FAILURE() << "seed " << s << ": " << wrong << "\nsmaller: " << outcome_there(small) << "\n"
                  << to_code(small);
  }
  std::cout << count << " programs on a toy device, " << failed << " failed\n";
}

}  // namespace
}  // namespace fsdp::fuzz
