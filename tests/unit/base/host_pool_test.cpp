#include "base/host_pool.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/allocator_watch.h"

namespace fsdp::detail {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor block(int64_t bytes) { return at::empty({bytes}, at::kByte); }

class HostPool : public ::testing::Test {
 protected:
  void SetUp() override {
    use_host_pool();
    if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) GTEST_SKIP() << "a sanitizer watches";
  }
};

TEST_F(HostPool, WhatAStepGivesUpTheNextOneUses) {
  const auto step = [] {
    std::vector<at::Tensor> activations;
    for (const int64_t size : {kMiB, 3 * kMiB, 100 * kMiB / 1000, 5 * kMiB + 7})
      activations.push_back(block(size).fill_(1));
  };
  step();
  const size_t mapped = host_pool_stats().mapped;
  const size_t in_use = host_pool_stats().in_use;
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(host_pool_stats().mapped, mapped);
  EXPECT_EQ(host_pool_stats().in_use, in_use);
}

TEST_F(HostPool, KeepsAtMostHalfOfTheMostInUse) {
  std::vector<at::Tensor> held;
  for (int i = 0; i < 8; ++i) held.push_back(block(4 * kMiB));
  held.clear();
  for (int64_t size = kMiB; size < 4 * kMiB; size += 40000) {  // ever new sizes
    const at::Tensor one = block(size).fill_(2);
    const HostPoolStats stats = host_pool_stats();
    ASSERT_LE(stats.in_use + stats.kept, stats.peak + stats.peak / 2) << size;
  }
}

TEST_F(HostPool, APeakOfLongAgoIsForgotten) {
  std::vector<at::Tensor> held;
  for (int i = 0; i < 64; ++i) held.push_back(block(4 * kMiB));
  held.clear();
  EXPECT_GE(host_pool_stats().kept, static_cast<size_t>(200 * kMiB));
  for (int i = 0; i < 1 << 17; ++i) block(kMiB);
  EXPECT_LE(host_pool_stats().kept, static_cast<size_t>(4 * kMiB) + host_pool_stats().in_use);
}

TEST_F(HostPool, WhatIsKeptCanBeGivenBack) {
  block(8 * kMiB);
  EXPECT_GE(host_pool_stats().kept, static_cast<size_t>(8 * kMiB));
  trim_host_pool();
  EXPECT_EQ(host_pool_stats().kept, 0);
  EXPECT_EQ(host_pool_stats().peak, host_pool_stats().in_use);
}

TEST_F(HostPool, BlocksAreAlignedWholeAndTheirOwn) {
  std::vector<at::Tensor> all;
  for (int64_t size = 1; size < 9 * kMiB; size = size * 3 + 1)
    all.push_back(block(size).fill_(static_cast<int>(size % 251)));
  for (const at::Tensor& one : all) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(one.data_ptr()) % 64, 0);
    EXPECT_TRUE(one.eq(static_cast<int>(one.numel() % 251)).all().item<bool>());
  }
}

TEST_F(HostPool, ManyThreadsTakeAndGiveBack) {
  const size_t before = host_pool_stats().in_use;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const at::Tensor one = block(kMiB / 8 * (1 + (i + t) % 5)).fill_(t);
        ASSERT_EQ(one[-1].item<int>(), t);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(host_pool_stats().in_use, before);
}

TEST_F(HostPool, RawMemoryAndProfilersKnowIt) {
  for (const size_t size : {size_t{100}, static_cast<size_t>(kMiB)}) {
    void* raw = c10::GetCPUAllocator()->raw_allocate(size);
    c10::GetCPUAllocator()->raw_deallocate(raw);
  }
  const testing::AllocatorWatch watch;
  const at::Tensor one = block(3 * kMiB);
  EXPECT_EQ(watch.live_bytes(), 3 * kMiB);
}

TEST_F(HostPool, NoMemoryIsAnErrorInWords) {
  const size_t before = host_pool_stats().in_use, peak = host_pool_stats().peak;
  try {
    block(int64_t{1} << 50);
    FAIL() << "a petabyte";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("no memory for a tensor of"), std::string::npos) << error.what();
  }
  EXPECT_EQ(host_pool_stats().in_use, before);
  EXPECT_EQ(host_pool_stats().peak, peak);
  EXPECT_NO_THROW(block(kMiB));
}

// LibTorch's own allocator with another address.
struct Own final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
  at::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

TEST_F(HostPool, AnAllocatorOfTheProgramStays) {
  at::Allocator* pool = c10::GetCPUAllocator();
  static Own own;
  c10::SetCPUAllocator(&own);
  use_host_pool();
  EXPECT_EQ(c10::GetCPUAllocator(), &own);
  c10::SetCPUAllocator(pool);
}

}  // namespace
}  // namespace fsdp::detail
