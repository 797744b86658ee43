// What a model needs to keep things in host memory that it computes with on a device. See Note [Offload].
#pragma once

#include <memory>

#include "base/promises.h"
#include "transfer/downloads.h"
#include "transfer/host_memory.h"

namespace fsdp::detail {

class BackwardStepper;

struct HostSide {
  explicit HostSide(c10::Device device) : downloads(device, memory) {}

  std::shared_ptr<HostMemory> memory = std::make_shared<HostMemory>();
  std::shared_ptr<Promises> promises = std::make_shared<Promises>();
  Downloads downloads;
  std::shared_ptr<BackwardStepper> stepper;  // null: optimizers step between backwards
};

}  // namespace fsdp::detail
