// What random programs do to gradients and values, and what they are compared with.
#include <fsdp/optim.h>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "fuzz/sharded_run.h"

namespace fsdp::fuzz {

using at::Tensor;

namespace {

// Sums of few fp64 numbers in another order.
constexpr double kTolerance = 1e-9;

}  // namespace

void Run::step_clipped(double max_norm) {
  if (auto* const ours = dynamic_cast<AdamW*>(optimizer_.get()))
    return ours->step_clipped(model_.get_total_norm(), max_norm);
  model_.clip_grad_norm_(max_norm);
  optimizer_->step();
}

void Run::act_on_gradients(const Action& action) {
  auto slices = model_.parameters();
  switch (action.what) {
    case Do::step:
      optimizer_->step();
      return;
    case Do::step_clipped:
      step_clipped(0.1 * (1 + action.a));
      return model_.zero_grad();
    case Do::new_optimizer:
      return renew_optimizer();
    case Do::zero_model:
      return model_.zero_grad();
    case Do::zero_optimizer:
      return optimizer_->zero_grad();
    case Do::zero_some:
      for (size_t i = 1; i < slices.size(); i += 2) slices[i].mutable_grad() = Tensor();
      return;
    case Do::scale_gradients:
      for (Tensor& slice : slices)
        if (slice.grad().defined()) slice.mutable_grad().mul_(0.5);
      return;
    case Do::clip_norm:
      model_.clip_grad_norm_(0.1 * (1 + action.a));
      return;
    case Do::clip_infinity:
      model_.clip_grad_norm_(0.01 * (1 + action.a), std::numeric_limits<double>::infinity());
      return;
    case Do::clip_value:
      for (Tensor& slice : slices)
        if (slice.grad().defined() && !slice.is_complex()) slice.mutable_grad().clamp_(-0.02, 0.02);
      return;
    case Do::penalty:
      return penalty().backward();
    case Do::penalty_first: {
      const Tensor first = penalty();
      return (loss_of(forward(0)) + first)
          .backward({}, /*retain_graph=*/with_graph(action), with_graph(action));
    }
    case Do::penalty_last: {
      const Tensor first = loss_of(forward(0));
      return (first + penalty()).backward();
    }
    case Do::penalty_kept_back: {
      const auto kept = model_.no_sync();
      const Tensor first = loss_of(forward(0));
      return (first + penalty()).backward();
    }
    case Do::keep_gradients:
      kept_.clear();
      copies_.clear();
      for (const Tensor& slice : slices) {
        kept_.push_back(slice.grad());
        copies_.push_back(slice.grad().defined() ? slice.grad().clone() : Tensor());
      }
      return model_.zero_grad();
    case Do::add_kept_gradients:
      for (size_t i = 0; i < kept_.size(); ++i) {
        Tensor& grad = slices[i].mutable_grad();
        if (kept_[i].defined() && slices[i].requires_grad())
          grad = grad.defined() ? kept_[i] + grad : kept_[i].clone();
      }
      kept_.clear();
      copies_.clear();
      return;
    default:
      return act_on_values(action);
  }
}

void Run::act_on_values(const Action& action) {
  switch (action.what) {
    case Do::freeze:
    case Do::freeze_and_look: {
      model_.zero_grad();
      const size_t i = frozen_by(action, names_.size());
      const bool by_slice = action.b % 2 == 1;
      (by_slice ? model_.named_parameters() : module_->named_parameters())[names_[i]].set_requires_grad(
          false);
      if (action.what == Do::freeze_and_look) {
        const auto whole = model_.full_params();
        see_all("");
      }
      return evaluate(0);
    }
    case Do::thaw:
      for (auto& param : action.b % 2 == 1 ? model_.parameters() : module_->parameters())
        if (param.is_floating_point() || param.is_complex()) param.set_requires_grad(true);
      return evaluate(0);
    case Do::look: {
      const auto whole = model_.full_params();
      return see_all("");
    }
    case Do::look_at_block: {
      const std::string block = "block" + std::to_string(action.a % program_.net.blocks);
      const auto whole = model_.full_params({.module = block});
      return see_all(block + ".");
    }
    case Do::look_on_host: {
      const auto whole = model_.full_params({.rank0_only = true, .offload = true});
      if (world_.rank() == 0) see_all("");
      return;
    }
    case Do::write_whole: {
      const auto whole = model_.full_params(true);
      for (Tensor& param : parameters_of(*module_)) change(param, 1.01);
      return;
    }
    case Do::look_at_gradients: {
      const auto whole = model_.full_params({.gradients = true});
      return see_gradients();
    }
    case Do::write_gradients: {
      const auto whole = model_.full_params({.write_back = true, .gradients = true});
      for (const Tensor& param : parameters_of(*module_))
        if (param.grad().defined()) param.mutable_grad().mul_(0.5);
      return;
    }
    case Do::write_data: {
      const auto whole = model_.full_params(true);
      for (Tensor& param : parameters_of(*module_)) {
        Tensor other = param.detach().clone();
        change(other, 0.99);
        param.set_data(other);
      }
      return;
    }
    case Do::write_slices:
      return change_slices(0.98);
    default:
      TORCH_CHECK(false, "an action that the sharded program does not know: ", name_of(action.what));
  }
}

void Run::same(const std::string& what, const Tensor& got, const Tensor& wanted) const {
  const Tensor a = got.detach().cpu().to(wanted.scalar_type()), b = wanted;
  const double size = b.numel() == 0 ? 0 : b.abs().max().to(at::kDouble).item<double>();
  const double error = b.numel() == 0 ? 0 : (a - b).abs().max().to(at::kDouble).item<double>();
  // Off the CPU kernels get copies, which may lie otherwise: sums inside them may have another order.
  const double tolerance =
      other_device_ && (program_.net.single || program_.compute != Compute::as_kept) ? 1e-5 : kTolerance;
  if (a.sizes() == b.sizes() && (error <= tolerance * (1 + size) || !std::isfinite(size))) return;
  std::ostringstream out;
  out << what << " differs by " << error << " of " << size << " on rank " << world_.rank();
  throw std::runtime_error(out.str());
}

void Run::compare(const Record& wanted) const {
  const auto& seen = wanted.seen[static_cast<size_t>(world_.rank())];
  if (seen_.size() != seen.size()) throw std::runtime_error("it saw another number of values");
  for (size_t i = 0; i < seen.size(); ++i) same("value " + std::to_string(i), seen_[i], seen[i]);
  const auto slices = model_.named_parameters();
  for (size_t i = 0; i < names_.size(); ++i) {
    const Tensor& slice = slices[names_[i]];
    for (const auto& shard : model_.parameter_info(names_[i]).shards) {
      if (!shard.is_local || shard.size == 0) continue;
      const auto part = [&](const Tensor& whole) {
        return whole.flatten().narrow(0, shard.start, shard.size);
      };
      same(names_[i], slice, part(wanted.weights[i]));
      if (slice.grad().defined() != wanted.grads[i].defined())
        throw std::runtime_error(names_[i] +
                                 (slice.grad().defined() ? " has a gradient" : " has no gradient") +
                                 " on rank " + std::to_string(world_.rank()));
      if (slice.grad().defined()) same("the gradient of " + names_[i], slice.grad(), part(wanted.grads[i]));
    }
    if (!kept_.empty() && kept_[i].defined())
      same("a held gradient of " + names_[i], kept_[i], copies_[i].cpu());
  }
}

}  // namespace fsdp::fuzz
