// Promise: a process that user code forks may drop what it inherits; its parent's groups do not notice.
#include <ATen/ATen.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <iostream>
#include <optional>
#include <thread>

#include "launch/store.h"
#include "support/gloo.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;

// Forks; the child runs `body` and ends.
void in_child(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  require(pid >= 0, "fork");
  if (pid == 0) {
    ::alarm(10);
    try {
      body();
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  require(::waitpid(pid, &status, 0) == pid, "waitpid");
  require(!WIFSIGNALED(status), "the child did not end by signal " + std::to_string(WTERMSIG(status)));
  require(WEXITSTATUS(status) == 0, "the child did well");
}

TEST(ForkedChild, DroppingAGroupDoesNotMarkTheParentAsGone) {
  run_processes(2, [](World& world) {
    auto comm = std::make_optional(Comm::create(world));
    comm->barrier();
    if (world.rank() == 1) in_child([&] { comm.reset(); });
    comm->barrier();
    if (world.rank() == 1) in_child([&] { world = World(nullptr); });
    comm->barrier();
  });
}

TEST(ForkedChild, DroppedWorkAndMemoryDoNotCount) {
  run_processes(2, [](World& world) {
    auto comm = Comm::create(world);
    auto slot = comm.allocate(MemoryUse::gather, 8, at::kFloat);
    comm.all_gather(slot, at::full({4}, 1.0), "first").wait();
    comm.barrier();
    if (world.rank() == 0) {
      in_child([&] { comm.release(slot); });
      in_child([&] { slot.reset(); });
      comm.barrier("the child is done");
      std::this_thread::sleep_for(milliseconds(300));
      require(slot.sum().item<double>() == 8,
              "still read here: " + std::to_string(slot.sum().item<double>()));
    } else {
      comm.barrier("the child is done");
      comm.release(slot);
    }
    auto again = std::make_optional(comm.all_gather(slot, at::full({4}, 2.0), "second"));
    in_child([&] { again.reset(); });
    again->wait();
    require(slot.sum().item<double>() == 16, "gathered");
  });
}

TEST(ForkedChild, UseOfTheGroupIsRefusedInWords) {
  run_processes(2, [](World& world) {
    auto comm = Comm::create(world);
    in_child([&] {
      require_words(refusal([&] { comm.barrier("mine"); }), "barrier 'mine' in process");
      require_words(refusal([&] { comm.split(0); }),
                    "a forked child of process " + std::to_string(::getppid()));
      comm.abort("not the child's to say");
    });
    comm.barrier();
  });
}

TEST(ForkedChild, AModelMayBeDropped) {
  run_processes(2, [](World& world) {
    auto model = std::make_optional(fully_shard(world, torch::nn::Linear(8, 4)));
    (*model)(at::ones({2, 8})).sum().backward();
    in_child([&] { model.reset(); });
    (*model)(at::ones({2, 8})).sum().backward();
  });
}

// Rank 0 serves the store by a thread that the child does not have.
TEST(ForkedChild, TheServerOfTheStoreMayBeDropped) {
  const int port = detail::listen_on("127.0.0.1", 0).port;
  run_processes(2, [port](World& outer) {
    auto world = std::make_optional(init({.rank = outer.rank(),
                                          .world_size = 2,
                                          .master_addr = "127.0.0.1",
                                          .master_port = port,
                                          .device = c10::Device(c10::kCPU)}));
    auto comm = std::make_optional(Comm::create(*world));
    in_child([&] {
      comm.reset();
      world.reset();
    });
    comm->barrier();
  });
}

TEST(ForkedChild, AC10dGroupMayBeDropped) {
  if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  run_processes(2, [](World& world) {
    auto comm = std::make_optional(Comm::create(world, {.backend = BackendKind::c10d, .c10d = make_gloo}));
    comm->barrier();
    in_child([&] { comm.reset(); });
    comm->barrier();
  });
}

}  // namespace
}  // namespace fsdp::testing
