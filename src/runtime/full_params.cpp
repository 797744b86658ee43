// The scope in which a module's parameters are whole.
#include <ATen/ops/empty.h>

#include "runtime/engine.h"
#include "runtime/quiet.h"

namespace fsdp::detail {

void Engine::open_full_params(bool write_back) {
  TORCH_CHECK(state_ != TrainingState::summon_full_params, "fsdp: full_params() inside full_params()");
  drop_failed_task();
  TORCH_CHECK(depth_ == 0 && task_ == -1, "fsdp: full_params() inside a call of the model or a backward");
  end_cycle();
  const Quiet quiet;
  executor_.release_all();
  write_back_ = write_back;
  for (const auto& unit : units) {
    for (const auto& region : unit->regions) {
      at::Tensor whole = at::empty({region->layout.total(unit->layout.ranks)}, region->shard.options());
      if (unit->layout.ranks > 1 && whole.numel() > 0)
        comm.all_gather(whole, region->shard, unit->name).wait();
      else
        whole.copy_(region->shard);
      whole_.push_back(whole);
      for (const auto& param : unit->params)
        if (&param->region() == region.get()) param->attach(whole.storage(), region->master);
    }
  }
  state_ = TrainingState::summon_full_params;
}

namespace {

// torch::load and set_data() give a parameter another memory: its values count, its memory does not.
void take_back(const UnitParam& param, const at::Tensor& whole, bool write_back) {
  const at::Tensor& tensor = param.tensor;
  const bool same = tensor.has_storage() && tensor.storage().is_alias_of(whole.storage()) &&
                    tensor.storage_offset() == param.place.offset;
  if (same) return;
  if (tensor.sizes() != at::IntArrayRef(param.place.param.shape)) {
    TORCH_WARN("fsdp: parameter '", param.names.front(),
               "' was given another shape in full_params(); its values stay as they were");
  } else if (write_back) {
    param.view_of(whole).copy_(tensor.detach());
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(param.place.param.shape, param.strides,
                                                      param.place.offset);
}

}  // namespace

void Engine::close_full_params() {
  if (state_ != TrainingState::summon_full_params) return;
  const Quiet quiet;
  size_t next = 0;
  for (const auto& unit : units) {
    for (const auto& region : unit->regions) {
      const at::Tensor& whole = whole_[next++];
      for (const auto& param : unit->params)
        if (&param->region() == region.get()) take_back(*param, whole, write_back_);
      const int64_t n = region->shard.numel();
      if (write_back_) region->shard.copy_(whole.narrow(0, unit->layout.ranks > 1 ? comm.rank() * n : 0, n));
    }
    unit->unbind();
  }
  for (UnitParam* param : params)
    if (param->requires_grad) watch_accumulator(*param);
  whole_.clear();
  state_ = TrainingState::idle;
}

}  // namespace fsdp::detail
