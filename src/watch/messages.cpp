#include "watch/messages.h"

namespace fsdp::detail {

std::string sharded_message(const std::string& name) {
  return "fsdp: parameter '" + name +
         "' is sharded: this rank has only a part of it. Whole values are there inside model.full_params(), "
         "and for operators inside model(...), model.run(fn) and a backward; there, kernels that take "
         "data_ptr() need `auto used = fsdp::use(tensor);` while they run. Optimizers, clone() and "
         "torch::save() take model.parameters() or work inside model.full_params().";
}

std::string dropped_message() {
  return "fsdp: this parameter belongs to a sharded model that is gone; keep the handle that fully_shard() "
         "returned";
}

std::string trap_message(const std::string& name) {
  return "fsdp: the gradient of parameter '" + name +
         "' is sharded: optimizers and clipping take model.parameters(), not module->parameters().";
}

}  // namespace fsdp::detail
