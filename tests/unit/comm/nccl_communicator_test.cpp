// NCCL's error paths, with NCCL replaced by a table of our own: no GPU is needed.
#include "comm/nccl/communicator.h"

#include <gmock/gmock.h>

namespace fsdp::testing {
namespace {

using detail::Milliseconds;
using detail::NcclApi;
using detail::NcclCommunicator;
using detail::NcclFailure;
using ::testing::HasSubstr;

// What the fake answers, and what was called. One test at a time.
struct Fake {
  ncclResult_t init = ncclSuccess;
  ncclResult_t async = ncclSuccess;
  int polls_until_async = 0;  // ncclInProgress that many times before
  int aborts = 0, destroys = 0, group_starts = 0, group_ends = 0;
  int blocking = -1;
} fake;

ncclResult_t fake_init(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t* config) {
  *comm = reinterpret_cast<ncclComm_t>(&fake);
  fake.blocking = config->blocking;
  return fake.init;
}
ncclResult_t fake_async(ncclComm_t, ncclResult_t* state) {
  *state = fake.polls_until_async-- > 0 ? ncclInProgress : fake.async;
  return ncclSuccess;
}
ncclResult_t fake_abort(ncclComm_t) { return ++fake.aborts, ncclSuccess; }
ncclResult_t fake_destroy(ncclComm_t) { return ++fake.destroys, ncclSuccess; }
const char* fake_error_string(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "some error";
}
const char* fake_last_error(ncclComm_t) { return "socket closed"; }
ncclResult_t fake_group_start() { return ++fake.group_starts, ncclSuccess; }
ncclResult_t fake_group_end() { return ++fake.group_ends, ncclSuccess; }

class NcclCommunicatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake = {};
    api_ = {};
    api_.init_rank = &fake_init;
    api_.get_async_error = &fake_async;
    api_.abort = &fake_abort;
    api_.destroy = &fake_destroy;
    api_.error_string = &fake_error_string;
    api_.last_error = &fake_last_error;
    api_.group_start = &fake_group_start;
    api_.group_end = &fake_group_end;
  }

  NcclCommunicator make(Milliseconds timeout = Milliseconds{1000}, std::function<bool()> stop = {}) {
    return {api_, ncclUniqueId{}, 0, 2, timeout, std::move(stop)};
  }

  static std::string words(const std::function<void()>& fn) {
    try {
      fn();
    } catch (const NcclFailure& failure) {
      return failure.what();
    }
    return "no failure";
  }

  NcclApi api_{};
};

TEST_F(NcclCommunicatorTest, IsMadeWithoutBlockingAndPolledUntilReady) {
  fake.init = ncclInProgress;
  fake.polls_until_async = 3;
  { const NcclCommunicator comm = make(); }
  EXPECT_EQ(fake.blocking, 0);
  EXPECT_EQ(fake.destroys, 1);
  EXPECT_EQ(fake.aborts, 0);
}

TEST_F(NcclCommunicatorTest, AnInitThatNeverEndsIsAborted) {
  fake.init = ncclInProgress;
  fake.polls_until_async = 1 << 30;
  EXPECT_THAT(words([&] { make(Milliseconds{20}); }),
              HasSubstr("ncclCommInitRankConfig: not done after 20 ms"));
  EXPECT_EQ(fake.aborts, 1);
  EXPECT_EQ(fake.destroys, 0);
}

TEST_F(NcclCommunicatorTest, AnInitIsGivenUpWhenTheGroupHasFailed) {
  fake.init = ncclInProgress;
  fake.polls_until_async = 1 << 30;
  EXPECT_THAT(words([&] { make(Milliseconds{60000}, [] { return true; }); }), HasSubstr("given up"));
  EXPECT_EQ(fake.aborts, 1);
}

TEST_F(NcclCommunicatorTest, ErrorsCarryBothOfNcclsTexts) {
  auto comm = make();
  EXPECT_THAT(words([&] { comm.run("ncclAllGather", [](ncclComm_t) { return ncclRemoteError; }); }),
              ::testing::AllOf(HasSubstr("ncclAllGather"), HasSubstr("remote process exited"),
                               HasSubstr("socket closed")));
}

TEST_F(NcclCommunicatorTest, FailuresCarryWhatNcclAnswered) {
  const auto result_of = [](const std::function<void()>& fn) -> std::optional<ncclResult_t> {
    try {
      fn();
    } catch (const NcclFailure& failure) {
      return failure.result();
    }
    return ncclSuccess;
  };
  fake.init = ncclInvalidUsage;
  EXPECT_EQ(result_of([&] { make(); }), ncclInvalidUsage);
  fake.init = ncclInProgress;
  fake.polls_until_async = 1 << 30;
  EXPECT_EQ(result_of([&] { make(Milliseconds{20}); }), std::nullopt) << "NCCL answered nothing";
}

// NCCL's words for it differ between versions.
TEST_F(NcclCommunicatorTest, RanksOnOneGpuAreToldWhatToDo) {
  EXPECT_THAT(detail::creation_advice(ncclInvalidUsage), HasSubstr("a GPU of its own"));
  EXPECT_EQ(detail::creation_advice(ncclRemoteError), "");
  EXPECT_EQ(detail::creation_advice(std::nullopt), "");
}

TEST_F(NcclCommunicatorTest, AsynchronousErrorsAreSeen) {
  auto comm = make();
  EXPECT_EQ(comm.async_error(), "");
  fake.async = ncclInProgress;
  EXPECT_EQ(comm.async_error(), "");
  fake.async = ncclRemoteError;
  EXPECT_THAT(comm.async_error(), HasSubstr("remote process exited"));
}

TEST_F(NcclCommunicatorTest, AfterAbortNothingReachesNccl) {
  {
    auto comm = make();
    comm.abort();
    comm.abort();
    fake.async = ncclRemoteError;
    EXPECT_EQ(comm.async_error(), "");
    bool called = false;
    EXPECT_THAT(
        words([&] { comm.run("ncclAllReduce", [&](ncclComm_t) { return called = true, ncclSuccess; }); }),
        HasSubstr("aborted"));
    EXPECT_FALSE(called);
  }
  EXPECT_EQ(fake.aborts, 1);
  EXPECT_EQ(fake.destroys, 0);
}

TEST_F(NcclCommunicatorTest, AGroupIsClosedEvenWhenACallInItFails) {
  auto comm = make();
  EXPECT_THAT(words([&] { comm.run_group("ncclSend", [](ncclComm_t) { return ncclInvalidArgument; }); }),
              HasSubstr("some error"));
  EXPECT_EQ(fake.group_starts, 1);
  EXPECT_EQ(fake.group_ends, 1);
}

}  // namespace
}  // namespace fsdp::testing
