// Hooks by which autograd reports gradients to the engine.
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "runtime/engine.h"

namespace fsdp::detail {

namespace {

// See Note [Reproducible]: sums of parts differ from sums of whole gradients.
void check_whole(const UnitParam& param) {
  TORCH_CHECK(!param.arrived || param.gradient.in_buffer() || !param.tensor.grad().defined(),
              "fsdp: reproducible: the gradient of '", param.names.front(),
              "' came in two parts in one backward, and the first has been summed over the ranks, so bits "
              "would depend on how many there are. A function of your own called backward() inside the "
              "backward: use fsdp::recompute(), or torch::autograd::grad() there and return the gradients");
}

}  // namespace

// Hooks outlive the model if the module does; then they do nothing.
void Engine::watch(UnitParam& param) {
  if (!param.tensor.requires_grad()) return;  // frozen since then: it is watched when it is unfrozen
  if (!std::exchange(param.hooked, true)) {
    const std::weak_ptr<Unit> alive = param.unit->shared_from_this();
    param.tensor.register_hook([alive, p = &param](const at::Tensor&) {
      if (const auto unit = alive.lock()) unit->engine->before_accumulate(*p);
    });
  }
  watch_accumulator(param);
}

// If a parameter gets other memory, autograd may take another accumulator for it.
void Engine::watch_accumulator(UnitParam& param) {
  const auto accumulator = torch::autograd::impl::grad_accumulator(param.tensor);
  if (accumulator == param.accumulator) return;
  param.accumulator = accumulator;
  using torch::autograd::variable_list;
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [alive = std::weak_ptr<Unit>(param.unit->shared_from_this()), p = &param](const variable_list& outputs,
                                                                                const variable_list&) {
        if (const auto unit = alive.lock()) unit->engine->after_accumulate(*p);
        return outputs;
      }));
}

void Engine::before_accumulate(UnitParam& param) {
  TORCH_CHECK(
      state_ != TrainingState::summon_full_params,
      "fsdp: a backward inside full_params(): gradients of whole parameters are not sharded. End that "
      "scope first, and call the model instead of the module.");
  enter_task();
  ++captured_;
  param.tensor.mutable_grad() = at::Tensor();
}

void Engine::after_accumulate(UnitParam& param) {
  --captured_;
  try {
    if (mode) check_whole(param);
    gradients_.arrived(param);
    phases_.arrived(param);
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

void Engine::make_accumulators_anew() {
  for (UnitParam* param : params) {
    param->accumulator.reset();
    watch(*param);
  }
}

}  // namespace fsdp::detail
