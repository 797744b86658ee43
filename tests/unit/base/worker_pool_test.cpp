#include "base/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>

namespace fsdp::testing {
namespace {

using detail::WorkerPool;

TEST(WorkerPool, DoesEveryTaskOnce) {
  WorkerPool pool;
  for (const int threads : {1, 2, 4, 2})
    for (const size_t tasks : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> done(tasks);
      pool.run(tasks, threads, [&](size_t i) { ++done[i]; });
      for (const auto& one : done) EXPECT_EQ(one, 1);
    }
}

TEST(WorkerPool, SeveralThreadsWork) {
  WorkerPool pool;
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> here{0};
  pool.run(2, 2, [&](size_t) {
    {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    }
    for (++here; here < 2;) std::this_thread::yield();  // until both are here
  });
  EXPECT_EQ(seen.size(), 2U);
}

TEST(WorkerPool, CallersAtTheSameTimeDoTheirOwn) {
  WorkerPool pool;
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int k = 0; k < 50; ++k) pool.run(20, 3, [&](size_t) { ++done; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 4 * 50 * 20);
}

TEST(WorkerPool, AForkedChildHasItsOwn) {
  std::atomic<int> done{0};
  WorkerPool::shared().run(8, 3, [&](size_t) { ++done; });
  const pid_t child = ::fork();
  if (child == 0) {
    WorkerPool::shared().run(8, 3, [&](size_t) { ++done; });
    ::_exit(done == 16 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace fsdp::testing
