#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <map>

namespace fsdp {

namespace {

using torch::optim::AdamWParamState;

// What one fused call takes: parameters with the same options, type and number of steps behind them.
struct Batch {
  std::vector<at::Tensor> params, grads, averages, squares, maxima, steps;
};

AdamWParamState& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& param, at::ScalarType type,
                          bool amsgrad) {
  auto& slot = optimizer.state()[param.unsafeGetTensorImpl()];
  if (!slot) {
    auto fresh = std::make_unique<AdamWParamState>();
    fresh->step(0);
    const auto zeros = [&] { return at::zeros_like(param, type, {}, {}, {}, at::MemoryFormat::Preserve); };
    fresh->exp_avg(zeros());
    fresh->exp_avg_sq(zeros());
    if (amsgrad) fresh->max_exp_avg_sq(zeros());
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

// bf16 of fp32 values, up or down at random so that the error is zero on average: a moment that changes by
// less than a step of bf16 would otherwise never change. What is random comes from the values and the number
// of the step, so that it depends neither on a generator nor on how parameters are sharded.
at::Tensor rounded(const at::Tensor& values, int64_t step) {
  const auto word = [](uint32_t bits) { return static_cast<int64_t>(static_cast<int32_t>(bits)); };
  const at::Tensor bits = values.view(at::kInt);
  at::Tensor noise = bits * word(0x9e3779b1U) + word(static_cast<uint32_t>(step) * 0x85ebca6bU);
  noise ^= noise.bitwise_right_shift(15);
  noise *= word(0xc2b2ae35U);
  noise.bitwise_right_shift_(16).bitwise_and_(0xffff).add_(bits).bitwise_and_(word(0xffff0000U));
  return noise.view(at::kFloat);
}

// Moments of another type are widened piece by piece; what is wide at once stays in cache.
void run_narrow(const at::Tensor& param, AdamWParamState& state, const AdamWOptions& options) {
  constexpr int64_t kPieceCpu = 1 << 15, kPieceDevice = 1 << 24;
  const int64_t piece = param.is_cpu() ? kPieceCpu : kPieceDevice;
  const at::Tensor step = at::full({}, static_cast<double>(state.step()),
                                   at::TensorOptions().dtype(at::kFloat).device(param.device()));
  std::vector<at::Tensor> narrow{state.exp_avg(), state.exp_avg_sq()};
  if (options.amsgrad()) narrow.push_back(state.max_exp_avg_sq());
  const at::Tensor flat = param.detach().view({-1}), grad = param.grad().reshape({-1});
  for (int64_t first = 0; first < flat.numel(); first += piece) {
    const int64_t n = std::min(piece, flat.numel() - first);
    const auto cut = [&](const at::Tensor& whole) { return whole.view({-1}).narrow(0, first, n); };
    Batch batch;
    batch.params = {cut(flat)};
    batch.grads = {cut(grad)};
    batch.averages = {cut(narrow[0]).to(flat.scalar_type())};
    batch.squares = {cut(narrow[1]).to(flat.scalar_type())};
    if (options.amsgrad()) batch.maxima = {cut(narrow[2]).to(flat.scalar_type())};
    batch.steps = {step};
    run(batch, options);
    cut(narrow[0]).copy_(rounded(batch.averages[0], state.step()));
    cut(narrow[1]).copy_(rounded(batch.squares[0], state.step()));
    if (options.amsgrad()) cut(narrow[2]).copy_(rounded(batch.maxima[0], state.step()));
  }
}

at::ScalarType moments_type(const at::Tensor& param, std::optional<at::ScalarType> wanted) {
  if (!wanted || *wanted == param.scalar_type()) return param.scalar_type();
  TORCH_CHECK(
      *wanted == at::kBFloat16 && param.scalar_type() == at::kFloat && param.is_contiguous(),
      "fsdp: AdamW keeps moments as bf16 of contiguous fp32 parameters, or in the parameters' own type; "
      "found moments of ",
      *wanted, " for a parameter of ", param.scalar_type());
  return *wanted;
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
      const at::ScalarType type = moments_type(param, moments_);
      AdamWParamState& state = state_of(*this, param, type, options.amsgrad());
      state.step(state.step() + 1);
      if (state.exp_avg().scalar_type() != param.scalar_type()) {
        run_narrow(param, state, options);
        continue;
      }
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
