#include "optim/adamw_state.h"

#include <ATen/ops/zeros_like.h>

#include "runtime/unit.h"

namespace fsdp::detail {

namespace {

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

UnitRegion* region_of_slice(const at::Tensor& param) {
  const Tag* tag = tag_of(param);
  return tag != nullptr && tag->region != nullptr ? region_of(*tag) : nullptr;
}

at::Tensor zero_moment(const at::Tensor& param, at::ScalarType type) {
  const UnitRegion* region = region_of_slice(param);
  if (region != nullptr && region->host_memory) return region->host_memory->take(param.numel(), type).zero_();
  return at::zeros_like(param, type, {}, {}, {}, at::MemoryFormat::Preserve);
}

torch::optim::AdamWParamState& adamw_state(torch::optim::Optimizer& optimizer, const at::Tensor& param,
                                           std::optional<at::ScalarType> moments, bool amsgrad) {
  const at::ScalarType type = moments_type(param, moments);
  auto& slot = optimizer.state()[param.unsafeGetTensorImpl()];
  if (!slot) {
    auto fresh = std::make_unique<torch::optim::AdamWParamState>();
    fresh->step(0);
    fresh->exp_avg(zero_moment(param, type));
    fresh->exp_avg_sq(zero_moment(param, type));
    slot = std::move(fresh);
  }
  auto& state = static_cast<torch::optim::AdamWParamState&>(*slot);
  if (amsgrad && !state.max_exp_avg_sq().defined())  // also of a state that was loaded
    state.max_exp_avg_sq(zero_moment(param, state.exp_avg().scalar_type()));
  return state;
}

}  // namespace fsdp::detail
