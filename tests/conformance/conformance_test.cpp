// One suite over all backends and world sizes. See suite.h for what is checked.
#include "conformance/suite.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "support/gloo.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

class Conformance : public ::testing::TestWithParam<int> {};

TEST_P(Conformance, LocalThreads) {
  run_ranks(GetParam(), [](World& world) {
    check_everything(world, {.options = {.backend = BackendKind::local}});
    require(std::string(Comm::create(world).backend_name()) == "local",
            "threads get the local backend by themselves");
  });
}

TEST_P(Conformance, ShmProcesses) {
  run_processes(GetParam(), [](World& world) {
    check_everything(world, {.options = {.backend = BackendKind::shm}});
    if (world.size() > 1)
      require(std::string(Comm::create(world).backend_name()) == "shm",
              "processes get the shm backend by themselves");
  });
}

// Ranks on one host and, in turns, on two.
TEST_P(Conformance, GlooProcesses) {
  if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  run_processes(GetParam(),
                [](World& world) { check_everything(world, {.options = {.backend = BackendKind::gloo}}); });
}

TEST_P(Conformance, C10dGloo) {
  if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  run_processes(GetParam(), [](World& world) {
    check_everything(world, {.options = {.backend = BackendKind::c10d, .c10d = make_gloo},
                             .tree_sums = false,
                             .finds_mismatch = false});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Conformance, ::testing::Values(1, 2, 3, 4, 8));

class GpuConformance : public ::testing::TestWithParam<int> {};

// The ranks share one GPU, which NCCL allows when each poses as a host of its own.
TEST_P(GpuConformance, Nccl) {
  run_on_gpus(GetParam(), [](World& world) {
    check_everything(
        world, {.options = {.backend = BackendKind::nccl}, .tree_sums = false, .finds_mismatch = false});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuConformance, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace fsdp::testing
