// Promise: ranks start cheaply and find each other: few requests of the store, no more threads than
// processors, a store that other hosts can reach.
#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <thread>

#include "base/fd.h"
#include "base/host.h"
#include "launch/enter.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

// What a rank of two finds, where this process has `before` threads.
int threads_of_a_rank(int before, std::optional<int> asked) {
  at::set_num_threads(before);
  int found = 0;
  auto ranks = std::make_unique<detail::RankProcesses>(
      2, [](World&) { ::_exit(at::get_num_threads()); },
      InitOptions{.device = c10::Device(c10::kCPU), .threads = asked});
  ranks->wait_all(std::chrono::milliseconds(5000));
  found = ranks->outcome(0).exit_code;
  EXPECT_EQ(ranks->outcome(1).exit_code, found);
  at::set_num_threads(1);
  return found;
}

TEST(Launch, ARankGetsItsShareOfTheProcessors) {
  const ScopedEnv openmp("OMP_NUM_THREADS", nullptr);
  const ScopedEnv mkl("MKL_NUM_THREADS", nullptr);
  const int share = std::max(1, detail::usable_cpus() / 2);
  EXPECT_EQ(threads_of_a_rank(2 * detail::usable_cpus(), {}), share);
  EXPECT_EQ(threads_of_a_rank(1, {}), 1) << "never more than before";
  EXPECT_EQ(threads_of_a_rank(2 * detail::usable_cpus(), share + 2), share + 2) << "InitOptions::threads";
}

TEST(Launch, WhoSetsThreadsByTheEnvironmentKeepsThem) {
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const ScopedEnv set(name, "5");
    EXPECT_EQ(threads_of_a_rank(2 * detail::usable_cpus(), {}), 2 * detail::usable_cpus()) << name;
  }
}

TEST(Launch, ThreadsMustBePositive) {
  try {
    init({.rank = 0, .world_size = 1, .device = c10::Device(c10::kCPU), .threads = 0});
    ADD_FAILURE() << "accepted";
  } catch (const RendezvousError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("InitOptions::threads is 0"));
  }
}

}  // namespace
}  // namespace fsdp::testing
