// Memory that is registered with NCCL, with NCCL replaced by a table of our own: no GPU is needed.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "comm/nccl/registered_memory.h"

namespace fsdp::testing {
namespace {

using detail::Milliseconds;
using detail::NcclApi;
using detail::NcclCommunicator;
using detail::RegisteredMemory;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What was called, in order, and what the fake answers. One test at a time.
struct FakeNccl {
  std::vector<std::string> calls;
  ncclResult_t answer = ncclSuccess;
  int comms = 0;
  int64_t handles = 0;
} nccl;

std::string number(ncclComm_t comm) { return std::to_string(reinterpret_cast<intptr_t>(comm)); }

ncclResult_t make_comm(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
  *comm = reinterpret_cast<ncclComm_t>(static_cast<intptr_t>(++nccl.comms));
  return ncclSuccess;
}
ncclResult_t registers(ncclComm_t comm, void*, size_t bytes, void** handle) {
  nccl.calls.push_back("register " + std::to_string(bytes) + " with " + number(comm));
  if (nccl.answer == ncclSuccess) *handle = reinterpret_cast<void*>(++nccl.handles);
  return nccl.answer;
}
ncclResult_t deregisters(ncclComm_t comm, void* handle) {
  nccl.calls.push_back("deregister " + std::to_string(reinterpret_cast<intptr_t>(handle)) + " of " +
                       number(comm));
  return nccl.answer;
}
ncclResult_t no_error(ncclComm_t, ncclResult_t* state) { return *state = ncclSuccess; }
ncclResult_t destroys(ncclComm_t comm) {
  return nccl.calls.push_back("destroy " + number(comm)), ncclSuccess;
}
ncclResult_t aborts(ncclComm_t comm) { return nccl.calls.push_back("abort " + number(comm)), ncclSuccess; }
const char* some_words(ncclResult_t) { return "some error"; }
const char* no_words(ncclComm_t) { return ""; }

class NcclRegistration : public ::testing::Test {
 protected:
  NcclRegistration() {
    nccl = {};
    api_.init_rank = &make_comm;
    api_.get_async_error = &no_error;
    api_.destroy = &destroys;
    api_.abort = &aborts;
    api_.error_string = &some_words;
    api_.last_error = &no_words;
    api_.register_memory = &registers;
    api_.deregister_memory = &deregisters;
  }

  std::unique_ptr<NcclCommunicator> make() {
    return std::make_unique<NcclCommunicator>(api_, ncclUniqueId{}, 0, 2, Milliseconds{1000},
                                              std::function<bool()>());
  }
  static std::shared_ptr<RegisteredMemory> memory_of(const std::vector<NcclCommunicator*>& comms) {
    return std::make_shared<RegisteredMemory>(comms, [] { nccl.calls.push_back("settle"); });
  }

  NcclApi api_{};
};

TEST_F(NcclRegistration, LastsAsLongAsTheMemoryWithAllCommunicators) {
  const auto gathers = make(), reduces = make();
  const auto memory = memory_of({gathers.get(), reduces.get()});
  at::Tensor block = at::zeros({4});
  memory->add(block);
  EXPECT_THAT(nccl.calls, ElementsAre("register 16 with 1", "register 16 with 2"));
  nccl.calls.clear();
  at::Tensor part = block.narrow(0, 1, 2);
  block = at::Tensor();
  EXPECT_THAT(nccl.calls, IsEmpty()) << "a view keeps the memory";
  EXPECT_EQ(part.sum().item<float>(), 0);
  part = at::Tensor();
  EXPECT_THAT(nccl.calls, ElementsAre("settle", "deregister 1 of 1", "deregister 2 of 2"));
}

TEST_F(NcclRegistration, EndsBeforeTheCommunicatorIsDestroyed) {
  auto comm = make();
  const auto memory = memory_of({comm.get()});
  at::Tensor block = at::zeros({4});
  memory->add(block);
  memory->leave();
  comm.reset();
  EXPECT_THAT(nccl.calls, ElementsAre("register 16 with 1", "deregister 1 of 1", "destroy 1"));
  nccl.calls.clear();
  block = at::Tensor();
  EXPECT_THAT(nccl.calls, IsEmpty()) << "nobody is left to tell";
}

// ncclCommAbort() ends them itself, and must not wait for kernels that hang.
TEST_F(NcclRegistration, IsNotTouchedAfterAnAbort) {
  const auto comm = make();
  const auto memory = memory_of({comm.get()});
  at::Tensor block = at::zeros({4});
  memory->add(block);
  comm->abort();
  block = at::Tensor();
  memory->add(at::zeros({4}));
  EXPECT_THAT(nccl.calls, ElementsAre("register 16 with 1", "abort 1", "settle"));
}

TEST_F(NcclRegistration, AnErrorLeavesTheMemoryUnregistered) {
  const auto comm = make();
  const auto memory = memory_of({comm.get()});
  nccl.answer = ncclInvalidArgument;
  at::Tensor block = at::ones({4});
  EXPECT_NO_THROW(memory->add(block));
  EXPECT_EQ(block.sum().item<float>(), 4);
  block = at::Tensor();
  EXPECT_THAT(nccl.calls, ElementsAre("register 16 with 1"));
}

TEST_F(NcclRegistration, AnOldNcclRegistersNothing) {
  api_.register_memory = nullptr;
  const auto comm = make();
  const auto memory = memory_of({comm.get()});
  memory->add(at::zeros({4}));
  EXPECT_THAT(nccl.calls, IsEmpty());
}

TEST_F(NcclRegistration, NothingIsNotRegistered) {
  const auto comm = make();
  memory_of({comm.get()})->add(at::zeros({0}));
  EXPECT_THAT(nccl.calls, IsEmpty());
}

}  // namespace
}  // namespace fsdp::testing
