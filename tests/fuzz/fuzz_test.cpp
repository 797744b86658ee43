// Promise: whatever a program does with a sharded model, it gets what a plain loop over the ranks gives.
//
// FSDP_SEED chooses other programs. A program that fails is made smaller and printed as C++.
#include <gtest/gtest.h>

#include <chrono>

#include "fuzz/sharded.h"
#include "fuzz/smaller.h"
#include "support/ranks.h"

namespace fsdp::fuzz {
namespace {

constexpr int kActions = 40;

// "" or what went wrong.
std::string outcome(const Program& program, std::chrono::milliseconds timeout) {
  try {
    std::vector<Record> wanted;
    testing::run_ranks(1, [&](World&) { wanted = run_plain(program, /*other_device=*/false); });
    CommOptions comm;
    comm.timeout = timeout;
    testing::run_ranks(program.ranks, [&](World& world) { run_sharded(program, world, wanted, comm); });
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Fuzz, ProgramsGiveWhatThePlainLoopGives) {
  const uint64_t first = testing::seed();
  const int count = testing::repeats(60, 5000);
  int failed = 0;
  for (uint64_t s = first; s < first + static_cast<uint64_t>(count) && failed < 3; ++s) {
    const Program program = generate(s, kActions, /*other_device=*/false);
    const std::string wrong = outcome(program, std::chrono::milliseconds(10000));
    if (wrong.empty()) continue;
    ++failed;
    const Program small = smaller(
        program, [](const Program& less) { return !outcome(less, std::chrono::milliseconds(1500)).empty(); });
    ADD_FAILURE() << "seed " << s << ": " << wrong
                  << "\nsmaller: " << outcome(small, std::chrono::milliseconds(3000)) << "\n"
                  << to_code(small);
  }
  std::cout << count << " programs of at least " << kActions << " actions, " << static_cast<int>(Do::kCount)
            << " kinds of actions, " << failed << " failed\n";
}

// Programs that once gave something else, as short as they could be made.
std::vector<Program> once_failed() {
  return {
      // A place for gradients that never came outlived its plan, and was too small for thawed ones.
      {.ranks = 2,
       .net = {.width = 8, .blocks = 1, .frozen = true},
       .wrap = Wrap::joined,
       .optimizer = Optimizer::fused_adamw,
       .share = false,
       .slots = 3,
       .ahead = -1,
       .again = true,
       .actions = {{Do::retain_graph, 3, 9},
                   {Do::backward, 0, 5},
                   {Do::look, 0, 0},
                   {Do::thaw, 3, 9},
                   {Do::penalty_kept_back, 3, 5}}},
      // A block was recomputed in one step and not in the next: gradients were told before they had come.
      {.ranks = 3,
       .net = {.width = 4, .blocks = 1, .complex = true},
       .wrap = Wrap::sizes,
       .optimizer = Optimizer::adamw,
       .share = true,
       .slots = 1,
       .prefetch = 2,
       .ahead = -1,
       .again = true,
       .lists = 947,
       .actions = {{Do::backward, 1, 3}, {Do::told, 1, 0}}},
      // With create_graph autograd gave a slice another tensor while a sum was on its way to the old one.
      {.ranks = 3,
       .net = {.width = 7, .blocks = 4, .tied = true, .complex = true},
       .wrap = Wrap::sizes,
       .compute = Compute::fp32,
       .optimizer = Optimizer::adamw,
       .slots = 0,
       .actions = {{Do::backward, 11, 7}, {Do::penalty_first, 6, 0}}},
      // A full state dict gave up a unit that a forward had gathered: peers wrote to it while it was read.
      {.ranks = 3,
       .net = {.width = 6, .blocks = 4, .twice = true},
       .wrap = Wrap::joined,
       .optimizer = Optimizer::adamw,
       .inner = true,
       .slots = 0,
       .ahead = 2,
       .casts = true,
       .lists = 887,
       .divide = 3,
       .actions = {{Do::forward_only, 6, 1}, {Do::save_crowd, 4, 10}, {Do::write_between, 4, 2}}},
  };
}

TEST(Fuzz, WhatOnceFailedDoesNot) {
  for (const Program& program : once_failed())
    EXPECT_EQ(outcome(program, std::chrono::milliseconds(10000)), "") << to_code(program);
}

// Ranks share the GPU. As off the CPU they use the same parameters; gates come and go on all at once.
TEST(GpuFuzz, ProgramsGiveWhatThePlainLoopGives) {
  const uint64_t first = testing::seed();
  const int count = testing::repeats(8, 40);
  int failed = 0;
  for (uint64_t s = first; s < first + static_cast<uint64_t>(count) && failed < 3; ++s) {
    const Program program = generate(s, /*actions=*/30, /*other_device=*/true);
    try {
      testing::run_on_gpus(program.ranks, [&](World& world) {
        CommOptions comm;
        comm.timeout = std::chrono::milliseconds(30000);
        run_sharded(program, world, run_plain(program, /*other_device=*/true), comm);
      });
    } catch (const std::exception& error) {
      ++failed;
      ADD_FAILURE() << "seed " << s << ": " << error.what() << "\n" << to_code(program);
    }
  }
  std::cout << count << " programs on a GPU, " << failed << " failed\n";
}

}  // namespace
}  // namespace fsdp::fuzz
