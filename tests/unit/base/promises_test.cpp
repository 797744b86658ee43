#include "base/promises.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace fsdp::testing {
namespace {

using detail::Promises;

TEST(Promises, WhoWaitsFindsThemKept) {
  Promises promises;
  int one = 0, two = 0;
  for (int i = 0; i < 100; ++i) {
    promises.add(&one, [&] { ++one; });
    promises.add(&two, [&] { ++two; });
  }
  promises.wait(&two);
  EXPECT_EQ(two, 100);
  promises.wait_all();
  EXPECT_EQ(one, 100);
}

TEST(Promises, WhatIsWaitedForComesFirst) {
  Promises promises;
  std::atomic<bool> goes_on = false;
  int order = 0, late = 0, wanted = 0;
  promises.add(&order, [&] {
    while (!goes_on) std::this_thread::yield();
  });
  promises.add(&late, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    late = ++order;
  });
  promises.add(&wanted, [&] { wanted = ++order; });
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the wait below has begun
    goes_on = true;
  });
  promises.wait(&wanted);
  promises.wait_all();
  other.join();
  EXPECT_LT(wanted, late);
}

TEST(Promises, TheLastThatIsReadyComesFirst) {
  Promises promises;
  std::atomic<bool> begun = false, goes_on = false;
  const int busy = 0, keys[4] = {};
  std::string order;
  promises.add(&busy, [&] {
    begun = true;
    while (!goes_on) std::this_thread::yield();
  });
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 4; ++i)
    promises.add_first(
        &keys[i], [&order, i] { order += static_cast<char>('0' + i); }, [i] { return i != 3; });
  promises.add_first(
      &keys[1], [&] { order += 'a'; }, [] { return true; });  // after the other of its key
  promises.add(&busy, [&] { order += 'b'; });
  goes_on = true;
  promises.wait_all();
  EXPECT_EQ(order, "21a0b3");
}

TEST(Promises, WhatIsWaitedForNeedNotBeReady) {
  Promises promises;
  std::atomic<bool> goes_on = false;
  const int busy = 0, wanted = 0, other = 0;
  std::string order;
  promises.add(&busy, [&] {
    while (!goes_on) std::this_thread::yield();
  });
  promises.add_first(
      &wanted, [&] { order += 'w'; }, [] { return false; });
  promises.add(&other, [&] { order += 'o'; });
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the wait below has begun
    goes_on = true;
  });
  promises.wait(&wanted);
  promises.wait_all();
  later.join();
  EXPECT_EQ(order, "wo");
}

TEST(Promises, OneThatCannotTellIsBegunAndToldOf) {
  Promises promises;
  const int key = 0;
  promises.add_first(
      &key, [] { throw std::runtime_error("no device"); },
      []() -> bool { throw std::runtime_error("no device"); });
  EXPECT_THROW(promises.wait(&key), std::runtime_error);
}

TEST(Promises, OneThatThrowsIsToldToWhoWaits) {
  Promises promises;
  const int key = 0;
  promises.add(&key, [] { throw std::runtime_error("no device"); });
  EXPECT_THROW(promises.wait(&key), std::runtime_error);
  promises.add(&key, [] {});
  EXPECT_NO_THROW(promises.wait(&key));
}

TEST(Promises, ErrorsAreToldToWhoWaitsForTheirKey) {
  Promises promises;
  const int sound = 0, broken = 0, other = 0;
  promises.add(&broken, [] { throw std::runtime_error("no device"); });
  promises.add(&broken, [] { throw std::logic_error("not the first"); });
  promises.add(&other, [] { throw std::logic_error("no disk"); });
  promises.add(&sound, [] {});
  promises.wait_all();
  EXPECT_NO_THROW(promises.wait(&sound));
  EXPECT_THROW(promises.wait(&broken), std::runtime_error);
  EXPECT_NO_THROW(promises.wait(&broken)) << "it was told";
  EXPECT_THROW(promises.wait(&other), std::logic_error);
}

TEST(Promises, AreKeptBeforeTheyEnd) {
  int done = 0;
  {
    Promises promises;
    for (int i = 0; i < 10; ++i) promises.add(&promises, [&] { ++done; });
  }
  EXPECT_EQ(done, 10);
}

}  // namespace
}  // namespace fsdp::testing
