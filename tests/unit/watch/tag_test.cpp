#include "watch/tag.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "watch/observer.h"
#include "watch/owner.h"

namespace fsdp::testing {
namespace {

using detail::mark;
using detail::TagHandle;
using detail::TagKind;

// A unit that allows everything.
struct QuietUnit final : detail::WatchedUnit {
  std::recursive_mutex& mutex() override { return mutex_; }
  bool may_read() const override { return true; }
  bool is_sharded() const override { return true; }
  bool is_gathered() const override { return true; }
  void pin() override {}
  void unpin() override {}
  void use() override {}
  void before_touch() override { ++touches; }
  void before_write() override {}
  void before_moment_write() override {}
  void check_write() const override {}
  std::exception_ptr explain(const std::exception_ptr& error) override { return error; }
  bool casts_inputs() const override { return false; }
  std::optional<at::ScalarType> output_type() const override { return {}; }
  Comm* batch_norm_ranks() override { return nullptr; }

  std::atomic<int> touches = 0;

 private:
  std::recursive_mutex mutex_;
};

struct QuietRegion final : detail::WatchedRegion {
  detail::WatchedUnit& owner() const override { return unit; }
  std::string name_at(int64_t) const override { return "weight"; }
  bool is_permanent() const override { return true; }
  const c10::Storage& view_storage() const override { return storage; }

  mutable QuietUnit unit;
  c10::Storage storage;
};

// Two threads do something of each round at the same time.
void race(int rounds, const std::function<void(int)>& one, const std::function<void(int)>& other) {
  std::atomic<int> arrived = 0;
  const auto run = [&](const std::function<void(int)>& does) {
    for (int round = 0; round < rounds; ++round) {
      ++arrived;
      while (arrived < 2 * (round + 1)) std::this_thread::yield();
      does(round);
    }
  };
  std::thread second([&] { run(other); });
  run(one);
  second.join();
}

TEST(Tag, GradientsAreReadWhileTheirRegionTakesAnotherTag) {
  constexpr int kRounds = 20000;
  QuietRegion region;
  std::vector<TagHandle> handles;
  std::vector<at::Tensor> kept;
  for (int i = 0; i < kRounds; ++i) {
    const at::Tensor gradient = at::ones({4});
    handles.push_back(mark(gradient, TagKind::gradient, &region));
    kept.push_back(detail::watched(gradient));
  }
  double total = 0;
  race(
      kRounds, [&](int i) { total += kept[static_cast<size_t>(i)].sum().item<double>(); },
      [&](int i) { handles[static_cast<size_t>(i)] = {}; });
  EXPECT_EQ(total, 4.0 * kRounds);
  EXPECT_GT(region.unit.touches, 0) << "no reader was as early as the other thread";
}

TEST(Tag, MemoryIsFreedOnceWhicheverThreadIsLast) {
  constexpr int kRounds = 200000;
  static std::atomic<int> freed;
  freed = 0;
  QuietRegion region;
  std::vector<TagHandle> handles;
  std::vector<c10::Storage> storages;
  for (int i = 0; i < kRounds; ++i) {
    at::DataPtr memory(
        &freed, &freed, [](void*) { ++freed; }, c10::kCPU);
    storages.emplace_back(c10::Storage::use_byte_size_t(), 0, std::move(memory));
    handles.push_back(mark(at::empty({0}).set_(storages.back()), TagKind::gradient, &region));
  }
  race(
      kRounds, [&](int i) { storages[static_cast<size_t>(i)] = {}; },
      [&](int i) { handles[static_cast<size_t>(i)] = {}; });
  EXPECT_EQ(freed, kRounds);
}

TEST(Tag, MemoryGoesWithTheLastStorage) {
  static int freed;
  freed = 0;
  QuietRegion region;
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0,
                       at::DataPtr(
                           &freed, &freed, [](void*) { ++freed; }, c10::kCPU));
  const TagHandle handle = mark(at::empty({0}).set_(storage), TagKind::gradient, &region);
  EXPECT_EQ(freed, 0);
  storage = {};
  EXPECT_EQ(freed, 1) << "the handle keeps no memory";
}

}  // namespace
}  // namespace fsdp::testing
