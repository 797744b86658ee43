#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fsdp/average.h>

#include "runtime/engine.h"
#include "runtime/model.h"
#include "watch/quiet.h"

namespace fsdp {

namespace {

void check_alike(const std::string& name, const at::Tensor& average, const at::Tensor& value) {
  TORCH_CHECK(average.numel() == value.numel() && average.device() == value.device(),
              "fsdp: update_average(): this rank's slice of '", name, "' has ", average.numel(),
              " elements on ", average.device(), " in the average and ", value.numel(), " on ",
              value.device(), " in the model; shard both with the same options");
}

}  // namespace

void update_average(const ShardedModel& average, const ShardedModel& model, double decay) {
  TORCH_CHECK(decay >= 0 && decay < 1, "fsdp: update_average() with decay ", decay,
              "; it is at least 0 and less than 1");
  const at::NoGradGuard no_grad;
  const auto values = model.named_parameters();
  const auto averages = average.named_parameters();
  TORCH_CHECK(values.size() == averages.size(), "fsdp: update_average(): the model has ", values.size(),
              " parameters and the average ", averages.size());
  for (const auto& item : averages) {
    const at::Tensor* value = values.find(item.key());
    TORCH_CHECK(value != nullptr, "fsdp: update_average(): the model has no parameter '", item.key(), "'");
    check_alike(item.key(), item.value(), *value);
    const at::Tensor& slice = item.value();
    if (slice.numel() == 0) continue;
    if (slice.is_floating_point() || slice.is_complex())
      slice.detach().lerp_(value->detach().to(slice.scalar_type()), 1.0 - decay);
    else
      slice.detach().copy_(*value);  // integers have no mean
  }
  auto kept = detail::model_of(average.engine()).module.named_buffers();
  for (const auto& item : detail::model_of(model.engine()).module.named_buffers())
    if (at::Tensor* buffer = kept.find(item.key())) buffer->copy_(item.value());
}

}  // namespace fsdp
