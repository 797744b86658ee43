// One NCCL communicator: created, used and ended so that no call can block for ever.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/clock.h"
#include "comm/nccl/api.h"

namespace fsdp::detail {

// An NCCL call that failed, with NCCL's description.
class NcclFailure : public std::runtime_error {
 public:
  explicit NcclFailure(const std::string& what, std::optional<ncclResult_t> result = {})
      : std::runtime_error(what), result_(result) {}
  // NCCL's result; none if we gave up on the call.
  std::optional<ncclResult_t> result() const { return result_; }

 private:
  std::optional<ncclResult_t> result_;
};

// Advice for a communicator that could not be created,
// to follow NCCL's own message; "" if we have none.
std::string creation_advice(std::optional<ncclResult_t> result);

// Non-blocking (in NCCL's sense): calls that NCCL has not finished are polled until stop() says that the
// group has failed. During creation, when no watchdog runs yet, polling also ends at the timeout.
//
// Threads: calls from one thread; abort() from any.
class NcclCommunicator {
 public:
  // Collective. `stop` is called while polling; true gives up (a peer is known to be dead).
  NcclCommunicator(const NcclApi& api, const ncclUniqueId& id, int rank, int size, Milliseconds timeout,
                   std::function<bool()> stop);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Runs `call(comm)` and waits until NCCL has enqueued it. Throws NcclFailure.
  void run(const char* what, const std::function<ncclResult_t(ncclComm_t)>& call);
  // Runs several calls that NCCL shall treat as one, so that sends and receives that cross do not block each
  // other.
  void run_group(const char* what, const std::function<ncclResult_t(ncclComm_t)>& calls);

  // Lets NCCL read and write `memory` in place in later collectives. Returns false if NCCL cannot or will
  // not: they copy as before. Registrations end with deregister_memory() or with the communicator.
  bool register_memory(void* memory, size_t bytes);
  // Call it before the memory is freed, when no operation on it is in flight. From any thread.
  void deregister_memory(void* memory);

  // Empty, or an error that NCCL found asynchronously.
  std::string async_error() const;
  // Makes kernels in flight return. Idempotent.
  void abort();

 private:
  template <class Call>
  ncclResult_t locked(const char* what, Call call) const;
  ncclResult_t progress(const char* what) const;
  void check(const char* what, ncclResult_t result, Milliseconds limit);
  std::string message(const char* what, ncclResult_t result) const;

  const NcclApi& api_;
  std::function<bool()> stop_;
  ncclComm_t comm_ = nullptr;
  // NCCL takes one call at a time per communicator; the owner and the watchdog both call.
  mutable std::mutex mutex_;
  std::atomic<bool> aborted_{false};
  std::mutex registered_mutex_;
  std::map<void*, void*> registered_;  // memory and NCCL's handle
};

}  // namespace fsdp::detail
