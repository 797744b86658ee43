// HostSide: all objects that CPU offload needs for one model. See Note [Offload].
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "base/promises.h"
#include "base/worker_pool.h"
#include "transfer/downloads.h"
#include "transfer/host_memory.h"

namespace fsdp::detail {

class BackwardStepper;

struct HostSide {
  // On machines with several nodes, memory and the threads that work on it stay on `node`.
  HostSide(c10::Device device, std::optional<NumaNode> node)
      : memory(std::make_shared<HostMemory>(std::move(node))), downloads(device, memory) {
    if (memory->node()) WorkerPool::shared().stay_on(memory->node()->processors);
  }

  std::shared_ptr<HostMemory> memory;
  std::shared_ptr<Promises> promises = std::make_shared<Promises>();
  Downloads downloads;
  std::shared_ptr<BackwardStepper> stepper;  // null: optimizers step between backwards
};

}  // namespace fsdp::detail
