#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <fsdp/optim.h>

#include <map>

namespace fsdp {

namespace {

using torch::optim::AdamWParamState;

// What one fused call takes: parameters with the same options, type and number of steps behind them.
struct Batch {
  std::vector<at::Tensor> params, grads, averages, squares, maxima, steps;
};

AdamWParamState& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& param, bool amsgrad) {
  auto& slot = optimizer.state()[param.unsafeGetTensorImpl()];
  if (!slot) {
    auto fresh = std::make_unique<AdamWParamState>();
    fresh->step(0);
    fresh->exp_avg(at::zeros_like(param, at::MemoryFormat::Preserve));
    fresh->exp_avg_sq(at::zeros_like(param, at::MemoryFormat::Preserve));
    if (amsgrad) fresh->max_exp_avg_sq(at::zeros_like(param, at::MemoryFormat::Preserve));
    slot = std::move(fresh);
  }
  return static_cast<AdamWParamState&>(*slot);
}

void add(Batch& batch, const at::Tensor& param, AdamWParamState& state, const at::Tensor& step,
         bool amsgrad) {
  batch.params.push_back(param);
  batch.grads.push_back(param.grad());
  batch.averages.push_back(state.exp_avg());
  batch.squares.push_back(state.exp_avg_sq());
  if (amsgrad) batch.maxima.push_back(state.max_exp_avg_sq());
  batch.steps.push_back(step);
}

void run(Batch& batch, const AdamWOptions& options) {
  at::_fused_adamw_(batch.params, batch.grads, batch.averages, batch.squares, batch.maxima, batch.steps,
                    options.lr(), std::get<0>(options.betas()), std::get<1>(options.betas()),
                    options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
}

}  // namespace

torch::Tensor AdamW::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const AdamWOptions&>(group.options());
    std::map<std::pair<int64_t, at::ScalarType>, Batch> batches;
    for (auto& param : group.params()) {
      if (!param.grad().defined() || param.numel() == 0) continue;
      AdamWParamState& state = state_of(*this, param, options.amsgrad());
      state.step(state.step() + 1);
      Batch& batch = batches[{state.step(), param.scalar_type()}];
      const at::Tensor step = batch.steps.empty()
                                  ? at::full({}, static_cast<double>(state.step()),
                                             at::TensorOptions().dtype(at::kFloat).device(param.device()))
                                  : batch.steps.front();
      add(batch, param, state, step, options.amsgrad());
    }
    for (auto& [key, batch] : batches) run(batch, options);
  }
  return loss;
}

}  // namespace fsdp
