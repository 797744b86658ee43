// Memory that is registered with communicators for as long as it lives.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/nccl/communicator.h"

namespace fsdp::detail {

// A backend creates it. It may outlive the backend, since memory may outlive the communicators.
class RegisteredMemory : public std::enable_shared_from_this<RegisteredMemory> {
 public:
  // `settle` is called before memory is deregistered, and returns when no operation is in flight.
  RegisteredMemory(std::vector<NcclCommunicator*> comms, std::function<void()> settle)
      : comms_(std::move(comms)), settle_(std::move(settle)) {}

  // Registers the memory of `block` until its storage is gone.
  void add(const at::Tensor& block);
  // The communicators are about to end, and their registrations with them.
  void leave();

 private:
  void remove(void* memory);

  std::mutex mutex_;
  std::vector<NcclCommunicator*> comms_;  // none once they are gone
  std::function<void()> settle_;
};

}  // namespace fsdp::detail
