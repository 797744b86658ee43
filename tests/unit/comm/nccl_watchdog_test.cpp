// What watchdogs of a group tell each other through the store. No GPU is needed.
#include "comm/nccl/watchdog.h"

#include <gmock/gmock.h>

#include "unit/comm/group_of_two.h"

namespace fsdp::detail {
namespace {

// The watchdog of one rank of two, and how often it has ended the group.
struct Watched {
  Watched(const c10::intrusive_ptr<::c10d::Store>& store, int rank)
      : dog(group_of_two(store, rank),
            {.async_error = [] { return std::string(); }, .on_fault = [this] { ++ended; }}) {}

  // Comes back once the watchdog has seen a fault: it looks at the store when it starts.
  CommError::Details fault() const {
    const auto deadline = deadline_after(Milliseconds(5000));
    while (ended == 0 && Clock::now() < deadline) std::this_thread::sleep_for(Milliseconds(1));
    const auto error = dog.fault({});
    return error ? error->details() : CommError::Details{};
  }

  std::atomic<int> ended{0};
  Watchdog dog;  // last: its thread ends first
};

TEST(NcclWatchdog, WhyAGroupWasAbortedReachesTheOtherRanks) {
  for (const AbortCause cause : {AbortCause::order, AbortCause::caller}) {
    const auto store = c10::make_intrusive<::c10d::HashStore>();
    Watched here(store, 1);
    here.dog.abort(cause, "in any words");
    Watched there(store, 0);
    const auto fault = there.fault();
    EXPECT_EQ(fault.fault, CommFault::aborted);
    EXPECT_EQ(fault.culprit, 11);
    EXPECT_THAT(fault.reason, ::testing::HasSubstr("in any words"));
    EXPECT_EQ(here.dog.abort_cause(), cause);
    EXPECT_EQ(there.dog.abort_cause(), cause);
  }
}

TEST(NcclWatchdog, TheFirstFaultStays) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  Watched here(store, 0);
  here.dog.report(CommFault::timeout, 1, "late");
  here.dog.abort(AbortCause::order, "too late");
  EXPECT_EQ(here.fault().fault, CommFault::timeout);
  EXPECT_EQ(here.dog.abort_cause(), AbortCause::caller);
  EXPECT_EQ(here.ended, 1);
}

}  // namespace
}  // namespace fsdp::detail
