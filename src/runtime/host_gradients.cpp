// Gradient shards in host memory, and optimizers that step when gradients have arrived there.
#include <algorithm>

#include "runtime/backward_stepper.h"
#include "runtime/engine.h"
#include "runtime/gradient_shards.h"

namespace fsdp::detail {

// See Note [Steps in backward].
void GradientShards::bring_to_host(UnitRegion& region, const at::Tensor& sum, bool adds,
                                   const Schedule* schedule) {
  auto arrived = host_->downloads.start(region.gradient.shard, sum.to(region.gradient_type()), adds);
  if (!host_->stepper || !region.host) return;
  const auto waiting = std::find_if(postponed_.begin(), postponed_.end(),
                                    [&](const auto& one) { return one.first == &region; });
  check_steps(region, adds && waiting == postponed_.end());
  if (waiting != postponed_.end()) {
    waiting->second = std::move(arrived);
    return;
  }
  const auto& params = region.unit->params;
  const bool unsure = std::any_of(params.begin(), params.end(), [&](const auto& param) {
    return &param->region() == &region && param->gradient.used_by_any_rank && !param->gradient.used_locally;
  });
  const UnitId unit = region.unit->id;
  if (unsure || !is_used(region) || schedule == nullptr || schedule->gathers_again(unit) ||
      schedule->needs_again(unit))
    postponed_.emplace_back(&region, std::move(arrived));
  else
    step(region, std::move(arrived));
}

bool GradientShards::is_used(const UnitRegion& region) {
  const auto& params = region.unit->params;
  return std::any_of(params.begin(), params.end(), [&](const auto& param) {
    return &param->region() == &region && param->gradient.used_by_any_rank;
  });
}

// Updates work on gradients reduced once, and not on gradients that autograd adds to slices.
void GradientShards::check_steps(const UnitRegion& region, bool adds) {
  TORCH_CHECK(!adds && !has_gradient(region), "fsdp: AdamW::step_in_backward(): unit '", region.unit->name(),
              "' has gradients already: of a penalty over slices, of a backward before, or because it was "
              "reduced before all had come. Such a model must step after its backwards.");
}

void GradientShards::step(UnitRegion& region, std::shared_ptr<c10::Event> arrived) {
  region.unit->engine->announce_change();  // a background save may still read
  host_->stepper->update(region, region.gradient.shard, std::move(arrived));
  region.host->updated_in_cycle(true);
  stepped_.push_back(&region);
}

void GradientShards::end_in_host_memory() {
  if (host_ == nullptr) return;
  if (!host_->stepper) return host_->downloads.wait();
  if (host_->downloads.adds()) host_->downloads.wait();  // a gradient that arrived in parts
  for (auto& [region, arrived] : std::exchange(postponed_, {}))
    if (is_used(*region)) step(*region, std::move(arrived));  // gradients of inputs alone are no step
  const std::vector<UnitRegion*> stepped = std::exchange(stepped_, {});
  for (UnitRegion* region : stepped) {
    region->host->updated_in_cycle(false);
    region->unit->note_promised_write();
    for (const auto& param : region->unit->params)
      if (&param->region() == region) param->gradient.used_by_any_rank = false;
    forget(*region);
  }
  host_->downloads.let_go();
  for (const UnitRegion* region : stepped) check_steps(*region, false);  // a penalty may come last
}

}  // namespace fsdp::detail
