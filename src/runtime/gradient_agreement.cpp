// Agreement of ranks about gradients.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>

#include "runtime/gradients.h"

namespace fsdp::detail {

// Per parameter, 1 if this rank has had a gradient for it since the last reduce. The last element is 1 if
// there is a gradient that the plan does not have.
std::vector<int64_t> Gradients::used_here(bool surprised) {
  std::vector<int64_t> used;
  for_each_param([&](UnitParam& param) {
    used.push_back(param.gradient.used_locally && !param.unit->gradient.held ? 1 : 0);
  });
  used.push_back(surprised ? 1 : 0);
  return used;
}

// Ranks exchange which parameters they used. If the policy allows, all of them wait for the answer. On other
// devices the host would then wait in every step: there only a rank reads it that left out a parameter of the
// plan, which no rank may have used, or that used one outside the plan. The latter must happen on all ranks
// at once.
bool Gradients::anyone_surprised(std::vector<int64_t>& used) {
  std::string late;
  bool left_out = false;
  for (const auto& unit : units_)
    if (unit->gradient.open && !unit->gradient.held) late = unit->name();
  for_each_param([&](UnitParam& param) {
    left_out =
        left_out || (mode_ == nullptr && param.gradient.used_by_any_rank && !param.gradient.used_locally);
  });
  const bool surprised = std::exchange(surprised_, false) || !late.empty();
  if (policy_.asks_ranks_every_step) {
    used = sum_over_ranks(used_here(surprised), "used parameters");
    return used.back() > 0;
  }
  at::Tensor total = on_device(used_here(surprised));
  Work work = mesh_.all.all_reduce(total, ReduceOp::sum, "used parameters");
  if (!surprised && !left_out) {
    work.wait();
    return false;
  }
  work.wait(mesh_.all.timeout());
  used = on_host(total);
  TORCH_CHECK(
      !surprised || used.back() == mesh_.all.size(), "fsdp: rank ", mesh_.all.rank(),
      " has gradients for other parameters than in the steps before",
      late.empty() ? "" : " (unit '" + late + "')", " and ", mesh_.all.size() - used.back(),
      " other ranks do not; off the CPU a rank may begin to use a parameter only when all ranks do, in "
      "the same step");
  return surprised;
}

// The number of ranks that have gradients of each unit. Gradients kept back from another backward do not
// count as open: the plan shall open the unit where its gradients arrive.
std::vector<GradientCounts> Gradients::count_ranks() {
  std::vector<int64_t> states;
  for (const auto& unit : units_) {
    const auto& params = unit->params;
    const bool some = !unit->gradient.held && std::any_of(params.begin(), params.end(), [](const auto& one) {
      return one->gradient.fresh();
    });
    states.push_back(some ? 1 : 0);
    states.push_back(some && unit->complete() ? 1 : 0);
  }
  states = sum_over_ranks(states, "complete units");
  std::vector<GradientCounts> counts;
  for (size_t i = 0; i < units_.size(); ++i) {
    counts.push_back({.ranks_open = states[2 * i], .ranks_complete = states[2 * i + 1]});
    for (const auto& param : units_[i]->params) counts.back().trained.push_back(param->requires_grad);
  }
  return counts;
}

// Per parameter, the number of ranks with an unreduced gradient. If `used` is empty, the same all-reduce also
// exchanges which parameters ranks used.
std::vector<int64_t> Gradients::count_left(std::vector<int64_t>& used) {
  std::vector<int64_t> left;
  for_each_param([&](UnitParam& param) {
    left.push_back(param.gradient.in_buffer() && !param.unit->gradient.held ? 1 : 0);
  });
  const auto params = static_cast<std::ptrdiff_t>(left.size());
  const bool asks = used.empty();
  if (asks) used = used_here(false);
  if (asks) left.insert(left.end(), used.begin(), used.end());
  left = sum_over_ranks(left, "used parameters");
  if (asks) used.assign(left.begin() + params, left.end());
  return left;
}

// The same on every rank, so no exchange is needed: see Note [Cycles without a plan].
std::vector<GradientCounts> Gradients::count_as_known(const Boundary& known) const {
  std::vector<GradientCounts> counts;
  for (const auto& unit : units_) {
    const bool reduced = known.reduced.contains(unit->id) && !unit->gradient.held;
    const bool opened = known.opened.contains(unit->id) && !unit->gradient.held;
    counts.push_back({.ranks_open = reduced || opened ? mesh_.all.size() : 0,
                      .ranks_complete = reduced ? mesh_.all.size() : 0});
    for (const auto& param : unit->params) counts.back().trained.push_back(param->requires_grad);
  }
  return counts;
}

void Gradients::check_finite(const UnitParam& param, const at::Tensor& gradient) {
  if (not_finite_ == nullptr && !at::isfinite(gradient).all().item<bool>()) not_finite_ = &param;
}

// Called by all ranks, so that all stop at the same step.
void Gradients::throw_not_finite() {
  std::vector<int64_t> found(static_cast<size_t>(mesh_.all.size()), 0);
  std::vector<const UnitParam*> all;
  for_each_param([&](UnitParam& param) { all.push_back(&param); });
  if (const auto* mine = std::exchange(not_finite_, nullptr))
    found[static_cast<size_t>(mesh_.all.rank())] =
        1 + (std::find(all.begin(), all.end(), mine) - all.begin());
  found = sum_over_ranks(found, "gradients not finite");
  std::string who;
  for (size_t r = 0; r < found.size(); ++r)
    if (found[r] > 0)
      who += (who.empty() ? "" : ", ") + std::string("of '") +
             all[static_cast<size_t>(found[r] - 1)]->names.front() + "' on rank " + std::to_string(r);
  TORCH_CHECK(who.empty(), "fsdp: gradients are not finite: ", who,
              ". The parameters are unchanged; look at that rank's batch, the loss and the learning rate.");
}

at::Tensor Gradients::on_device(const std::vector<int64_t>& values) const {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kLong)
      .to(device_, /*non_blocking=*/false, /*copy=*/true);
}

std::vector<int64_t> Gradients::on_host(const at::Tensor& values) {
  const at::Tensor here = values.cpu();
  const auto* data = here.const_data_ptr<int64_t>();
  return {data, data + here.numel()};
}

std::vector<int64_t> Gradients::sum_over_ranks(const std::vector<int64_t>& values, const char* label) {
  at::Tensor exchanged = on_device(values);
  mesh_.all.all_reduce(exchanged, ReduceOp::sum, label).wait(mesh_.all.timeout());
  return on_host(exchanged);
}

}  // namespace fsdp::detail
