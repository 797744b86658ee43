#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <array>
#include <map>

#include "optim/adamw_state.h"
#include "optim/clip.h"
#include "optim/host_adamw.h"
#include "optim/visitors.h"
#include "runtime/policy.h"

namespace fsdp {

namespace {

using torch::optim::AdamWParamState;

// The tensors of one fused call: parameters with the same options, type and number of steps.
struct Batch {
  std::vector<at::Tensor> params, grads, averages, squares, maxima, steps;
};

// A parameter and the tensors that its update reads and writes, on one device.
struct Piece {
  at::Tensor param, grad, average, square, maximum;
};

// The fused operator reads memory in order, without strides.
at::Tensor laid_out_as(const at::Tensor& param, const at::Tensor& grad) {
  if (grad.layout() != at::kStrided || grad.strides() == param.strides()) return grad;
  return at::empty_like(param, grad.options(), at::MemoryFormat::Preserve).copy_(grad);
}

void add(Batch& batch, const Piece& piece, const at::Tensor& step) {
  batch.params.push_back(piece.param);
  batch.grads.push_back(piece.grad);
  batch.averages.push_back(piece.average);
  batch.squares.push_back(piece.square);
  if (piece.maximum.defined()) batch.maxima.push_back(piece.maximum);
  batch.steps.push_back(step);
}

void run(Batch& batch, const AdamWOptions& options) {
  at::_fused_adamw_(batch.params, batch.grads, batch.averages, batch.squares, batch.maxima, batch.steps,
                    options.lr(), std::get<0>(options.betas()), std::get<1>(options.betas()),
                    options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
}

// The same bits as the host's kernel: Note [Narrow moments].
at::Tensor rounded(const at::Tensor& values, int64_t step) {
  const auto word = [](uint32_t bits) { return static_cast<int64_t>(static_cast<int32_t>(bits)); };
  const at::Tensor bits = values.view(at::kInt);
  at::Tensor noise = bits * word(0x9e3779b1U) + word(static_cast<uint32_t>(step) * 0x85ebca6bU);
  noise ^= noise.bitwise_right_shift(15);
  noise *= word(0xc2b2ae35U);
  noise.bitwise_right_shift_(16).bitwise_and_(0xffff).add_(bits).bitwise_and_(word(0xffff0000U));
  return at::where(values.isfinite(), noise.view(at::kFloat), values);
}

// Parameters with narrow moments, in pieces that are concatenated and widened at once.
class NarrowRun {
 public:
  NarrowRun(const AdamWOptions& options, int64_t step) : options_(options), step_(step) {}

  void add(const Piece& piece) {
    const at::Tensor& param = piece.param;
    const int64_t most = detail::policy_of(param.device()).elements_at_once;
    const at::Tensor grad = piece.grad.reshape({-1});
    for (int64_t first = 0; first < param.numel();) {
      const int64_t n = std::min(most - pending_, param.numel() - first);
      const auto cut = [&](const at::Tensor& whole) { return whole.view({-1}).narrow(0, first, n); };
      params_.push_back(cut(param.detach()));
      grads_.push_back(cut(grad));
      moments_[0].push_back(cut(piece.average));
      moments_[1].push_back(cut(piece.square));
      if (options_.amsgrad()) moments_[2].push_back(cut(piece.maximum));
      first += n;
      pending_ += n;
      if (pending_ == most) flush();
    }
  }

  void flush() {
    if (params_.empty()) return;
    const size_t kinds = options_.amsgrad() ? 3 : 2;
    std::array<at::Tensor, 3> wide;
    for (size_t i = 0; i < kinds; ++i) wide[i] = joined(moments_[i]);
    Batch batch;
    batch.params = {joined(params_)};
    batch.grads = {joined(grads_)};
    batch.averages = {wide[0]};
    batch.squares = {wide[1]};
    if (kinds == 3) batch.maxima = {wide[2]};
    batch.steps = {at::full({}, static_cast<double>(step_), batch.params[0].options())};
    run(batch, options_);
    put_back(params_, batch.params[0]);
    for (size_t i = 0; i < kinds; ++i) put_back(moments_[i], rounded(wide[i], step_));
    grads_.clear();
    pending_ = 0;
  }

 private:
  static std::vector<at::Tensor> split(const at::Tensor& flat, const std::vector<at::Tensor>& pieces) {
    std::vector<int64_t> sizes;
    for (const at::Tensor& piece : pieces) sizes.push_back(piece.numel());
    return flat.split_with_sizes(sizes);
  }
  at::Tensor joined(const std::vector<at::Tensor>& pieces) const {
    const at::Tensor flat = at::empty({pending_}, pieces.front().options().dtype(at::kFloat));
    std::vector<at::Tensor> places = split(flat, pieces);
    at::_foreach_copy_(places, pieces);
    return flat;
  }
  static void put_back(std::vector<at::Tensor>& pieces, const at::Tensor& flat) {
    at::_foreach_copy_(pieces, split(flat, pieces));
    pieces.clear();
  }

  const AdamWOptions& options_;
  int64_t step_;
  int64_t pending_ = 0;
  std::vector<at::Tensor> params_, grads_;
  std::array<std::vector<at::Tensor>, 3> moments_;
};

// Other gradients are scaled before the step, all at once.
bool is_scaled_in_step(const at::Tensor& grad) { return grad.is_cpu() && grad.scalar_type() == at::kFloat; }

}  // namespace

void AdamW::step_clipped(const at::Tensor& total_norm, double max_norm) {
  TORCH_CHECK(!steps_in_backward(),
              "fsdp: step_clipped() with step_in_backward(), which has used the gradients already");
  const at::Tensor factor = detail::clip_factor(total_norm.detach(), max_norm);
  bool reads_factor = false;
  std::vector<at::Tensor> others;
  for (const auto& group : param_groups())
    for (const at::Tensor& param : group.params()) {
      if (!param.grad().defined() || detail::region_of_slice(param) == nullptr) continue;
      if (is_scaled_in_step(param.grad()))
        reads_factor = true;
      else
        others.push_back(param.grad());
    }
  if (!others.empty()) {
    const at::NoGradGuard no_grad;
    at::_foreach_mul_(others, factor.to(others.front().device()));
  }
  struct Reset {
    float& factor;
    ~Reset() { factor = 1; }
  } const reset{factor_};
  if (reads_factor) factor_ = factor.item().to<float>();
  step();
}

void AdamW::save(torch::serialize::OutputArchive& archive) const {
  // Archives read memory without an operator. This operator changes nothing, and waits for promised updates.
  const at::NoGradGuard no_grad;
  for (const auto& [key, state] : state()) {
    const auto& its = static_cast<const AdamWParamState&>(*state);
    for (const at::Tensor& moment : {its.exp_avg(), its.exp_avg_sq(), its.max_exp_avg_sq()})
      if (moment.defined()) moment.as_strided({0}, {1}).clone();
  }
  torch::optim::AdamW::save(archive);
}

torch::Tensor AdamW::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  detail::HostAdamW on_host;
  detail::Visitors visitors;
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const AdamWOptions&>(group.options());
    std::map<std::pair<int64_t, at::ScalarType>, Batch> batches;
    std::map<int64_t, NarrowRun> narrow;
    const auto run_all = [&] {
      for (auto& [key, batch] : std::exchange(batches, {})) run(batch, options);
      for (auto& [step, rest] : narrow) rest.flush();
      visitors.send_back();
    };
    for (auto& param : group.params()) {
      if (!param.grad().defined()) continue;
      if (param.numel() == 0) {
        // Another rank holds this slice and writes to its unit; all ranks must know of that.
        if (param.is_cpu())
          on_host.touch(param);
        else
          param.detach().zero_();
        continue;
      }
      AdamWParamState& state = detail::adamw_state(*this, param, moments_, options.amsgrad());
      state.step(state.step() + 1);
      detail::UnitRegion* region = detail::region_of_slice(param);
      at::Tensor grad = laid_out_as(param, param.grad());
      const float factor = region != nullptr && is_scaled_in_step(grad) ? factor_ : 1.0F;
      if (detail::fits_host_adamw(param, grad, state)) {
        on_host.add(param, grad, state, options, region, factor);
        continue;
      }
      if (factor != 1.0F) grad = grad * factor;
      const auto here = [&](const at::Tensor& tensor, bool returns = true) {
        return visitors.on(param.device(), tensor, returns);
      };
      const Piece piece{.param = param,
                        .grad = here(grad, false),
                        .average = here(state.exp_avg()),
                        .square = here(state.exp_avg_sq()),
                        .maximum = options.amsgrad() ? here(state.max_exp_avg_sq()) : at::Tensor()};
      if (state.exp_avg().scalar_type() != param.scalar_type()) {
        narrow.try_emplace(state.step(), options, state.step()).first->second.add(piece);
      } else {
        Batch& batch = batches[{state.step(), param.scalar_type()}];
        const at::Tensor step = batch.steps.empty()
                                    ? at::full({}, static_cast<double>(state.step()),
                                               at::TensorOptions().dtype(at::kFloat).device(param.device()))
                                    : batch.steps.front();
        add(batch, piece, step);
      }
      if (visitors.crowded()) run_all();
    }
    run_all();
  }
  on_host.flush();
  visitors.wait();
  return loss;
}

}  // namespace fsdp
