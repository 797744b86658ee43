#include "comm/nccl/communicator.h"

#include <thread>

namespace fsdp::detail {

// NCCL has no error code of its own for ranks that share a GPU.
std::string creation_advice(std::optional<ncclResult_t> result) {
  if (result != ncclInvalidUsage) return "";
  return ". NCCL refuses ranks that share a GPU: give every rank a GPU of its own; for tests on one GPU set "
         "NCCL_HOSTID to another value on every rank";
}

NcclCommunicator::NcclCommunicator(const NcclApi& api, const ncclUniqueId& id, int rank, int size,
                                   Milliseconds timeout, std::function<bool()> stop)
    : api_(api), stop_(std::move(stop)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    check("ncclCommInitRankConfig", api_.init_rank(&comm_, size, id, rank, &config), timeout);
  } catch (...) {
    abort();
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr || aborted_.exchange(true)) return;
  for (const auto& [memory, handle] : registered_) api_.deregister_memory(comm_, handle);
  api_.destroy(comm_);
}

bool NcclCommunicator::register_memory(void* memory, size_t bytes) {
  if (api_.register_memory == nullptr || bytes == 0) return false;
  void* handle = nullptr;
  try {
    run("ncclCommRegister",
        [&](ncclComm_t comm) { return api_.register_memory(comm, memory, bytes, &handle); });
  } catch (const NcclFailure&) {
    return false;
  }
  if (handle == nullptr) return false;
  const std::lock_guard lock(registered_mutex_);
  registered_[memory] = handle;
  return true;
}

// After an abort there is nothing to do: it has ended the communicator's registrations.
void NcclCommunicator::deregister_memory(void* memory) {
  void* handle = nullptr;
  {
    const std::lock_guard lock(registered_mutex_);
    const auto found = registered_.find(memory);
    if (found == registered_.end()) return;
    handle = found->second;
    registered_.erase(found);
  }
  try {
    run("ncclCommDeregister", [&](ncclComm_t comm) { return api_.deregister_memory(comm, handle); });
  } catch (const NcclFailure&) {
    return;
  }
}

void NcclCommunicator::run(const char* what, const std::function<ncclResult_t(ncclComm_t)>& call) {
  check(what, locked(what, [&] { return call(comm_); }), Milliseconds::max());
}

void NcclCommunicator::run_group(const char* what, const std::function<ncclResult_t(ncclComm_t)>& calls) {
  run(what, [&](ncclComm_t comm) {
    if (const auto result = api_.group_start(); result != ncclSuccess) return result;
    const ncclResult_t inside = calls(comm);
    const ncclResult_t end = api_.group_end();
    return inside != ncclSuccess && inside != ncclInProgress ? inside : end;
  });
}

template <class Call>
ncclResult_t NcclCommunicator::locked(const char* what, Call call) const {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw NcclFailure(std::string(what) + ": the communicator was aborted");
  return call();
}

// NCCL's state of the calls it has not finished. Asking also completes them, so only one thread may ask at a
// time.
ncclResult_t NcclCommunicator::progress(const char* what) const {
  return locked(what, [&] {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = api_.get_async_error(comm_, &state);
    return asked == ncclSuccess ? state : asked;
  });
}

void NcclCommunicator::check(const char* what, ncclResult_t result, Milliseconds limit) {
  const auto start = Clock::now();
  while (result == ncclInProgress) {
    if (stop_ && stop_()) throw NcclFailure(std::string(what) + ": given up, the group has failed");
    if (elapsed_since(start) > limit)
      throw NcclFailure(std::string(what) + ": not done after " + std::to_string(limit.count()) + " ms");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    result = progress(what);
  }
  if (result != ncclSuccess) throw NcclFailure(message(what, result), result);
}

std::string NcclCommunicator::message(const char* what, ncclResult_t result) const {
  const char* detail = api_.last_error(comm_);
  return std::string(what) + ": " + api_.error_string(result) +
         (detail != nullptr && *detail != '\0' ? std::string(" (") + detail + ")" : "");
}

// A call may hang in a launch behind a stuck kernel: the watchdog must not wait for it.
std::string NcclCommunicator::async_error() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || aborted_) return "";
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_.get_async_error(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  return state == ncclSuccess || state == ncclInProgress ? "" : message("asynchronous error", state);
}

// NCCL allows an abort while another thread is inside a call; this waits only for calls that end soon.
void NcclCommunicator::abort() {
  constexpr Milliseconds kPatience{1000};
  const auto start = Clock::now();
  {
    std::unique_lock lock(mutex_, std::try_to_lock);
    while (!lock && elapsed_since(start) < kPatience) {
      std::this_thread::sleep_for(Milliseconds(1));
      static_cast<void>(lock.try_lock());
    }
    if (comm_ == nullptr || aborted_.exchange(true)) return;
  }
  api_.abort(comm_);
}

}  // namespace fsdp::detail
