#include "optim/adamw_state.h"

#include <ATen/ops/zeros_like.h>

#include "runtime/unit.h"
#include "watch/observer.h"

namespace fsdp::detail {

at::ScalarType moment_type(const at::Tensor& param, std::optional<at::ScalarType> wanted) {
  if (!wanted || *wanted == param.scalar_type()) return param.scalar_type();
  TORCH_CHECK(
      *wanted == at::kBFloat16 && param.scalar_type() == at::kFloat && param.is_contiguous(),
      "fsdp: AdamW keeps moments as bf16 of contiguous fp32 parameters, or in the parameters' own type; "
      "found moments of ",
      *wanted, " for a parameter of ", param.scalar_type());
  return *wanted;
}

UnitRegion* region_of_slice(const at::Tensor& param) {
  const Tag* tag = tag_of(param);
  return tag != nullptr ? region_of(*tag) : nullptr;
}

at::Tensor watched_moment(UnitRegion& region, const at::Tensor& moment) {
  if (tag_of(moment) != nullptr) return moment;
  region.moment_tags.push_back(mark(moment, TagKind::moment, &region));
  return watched(moment);
}

bool is_watched_moment(const at::Tensor& moment) {
  const Tag* tag = tag_of(moment);
  return tag != nullptr && tag->kind == TagKind::moment && tag->region != nullptr;
}

at::Tensor zero_moment(const at::Tensor& param, at::ScalarType type) {
  UnitRegion* region = region_of_slice(param);
  const at::Tensor moment = region != nullptr && region->host_memory
                                ? region->host_memory->take(param.numel(), type).zero_()
                                : at::zeros_like(param, type, {}, {}, {}, at::MemoryFormat::Preserve);
  return region != nullptr ? watched_moment(*region, moment) : moment;
}

torch::optim::AdamWParamState& adamw_state(torch::optim::Optimizer& optimizer, const at::Tensor& param,
                                           std::optional<at::ScalarType> moments, bool amsgrad) {
  const at::ScalarType type = moment_type(param, moments);
  auto& slot = optimizer.state()[param.unsafeGetTensorImpl()];
  if (!slot) {
    auto fresh = std::make_unique<torch::optim::AdamWParamState>();
    fresh->step(0);
    fresh->exp_avg(zero_moment(param, type));
    fresh->exp_avg_sq(zero_moment(param, type));
    slot = std::move(fresh);
  }
  auto& state = static_cast<torch::optim::AdamWParamState&>(*slot);
  if (amsgrad && !state.max_exp_avg_sq().defined())  // also for a loaded state
    state.max_exp_avg_sq(zero_moment(param, state.exp_avg().scalar_type()));
  return state;
}

}  // namespace fsdp::detail
