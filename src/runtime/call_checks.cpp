// Checks at the beginning of a call of the model.
#include <ATen/autocast_mode.h>

#include "base/log.h"
#include "runtime/checks.h"
#include "runtime/engine.h"
#include "watch/quiet.h"

namespace fsdp::detail {

void Engine::check_module() const {
  TORCH_CHECK(half_loaded.empty(), half_loaded);
  check_tree(module, registered);
  for (const UnitParam* param : params) {
    check_parameter(*param);
    if (param->slice.grad().defined() && param->gradient.ever && !param->tensor.grad().defined()) {
      TORCH_WARN_ONCE(
          "fsdp: module->zero_grad() does not reach the gradients of a sharded model, which add up; call "
          "model.zero_grad() or optimizer.zero_grad()");
    }
  }
  const auto type = world.device().type();
  if (at::autocast::is_autocast_enabled(type)) {
    TORCH_WARN_ONCE(
        "fsdp: autocast keeps whole low-precision copies of the weights from forward to backward; "
        "use ShardOptions::precision instead, for example fsdp::bf16()");
  }
}

// A pinned unit would not see the values that the optimizer wrote.
void Engine::check_scopes() const {
  for (const auto& unit : units)
    TORCH_CHECK(unit->pins == 0, "fsdp: a use() scope of unit '", unit->name(),
                "' outlives the call of the model in which it was made; let it end there");
}

void Engine::warn_of_equal_batches(const std::vector<at::Tensor>& arguments) {
  if (mesh.all.size() == 1 || arguments.empty()) return;
  const Quiet quiet;
  if (batches_are_equal(mesh.all, world.device(), arguments) && world.rank() == 0)
    log_warn("all " + std::to_string(mesh.all.size()) +
             " ranks were given the same first batch: they will compute the same gradients. Give each rank "
             "its own data, for example by fsdp::Sampler.");
}

}  // namespace fsdp::detail
