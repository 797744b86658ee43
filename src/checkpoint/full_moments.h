// State dicts of optimizers with whole tensors.
#pragma once

#include <fsdp/state_dict.h>

#include "runtime/model.h"

namespace fsdp::detail {

// The result of optimizer_state_dict() for StateDictType::full. Collective.
StateDict full_moments(Model& model, torch::optim::Optimizer& optimizer, const StateDictOptions& options,
                       const OptimizerFormat* format);

}  // namespace fsdp::detail
