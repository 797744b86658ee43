// use(): parameters for kernels that are no operators.
#include <fsdp/sharded_model.h>

#include "runtime/engine.h"
#include "watch/messages.h"

namespace fsdp {

Use::Use(const at::Tensor& tensor) {
  const detail::Tag* tag = detail::tag_of(tensor);
  if (tag == nullptr || tag->kind != detail::TagKind::parameter) return;
  const detail::UnitRegion* region = detail::region_of(*tag);
  TORCH_CHECK(region != nullptr, detail::dropped_message());
  detail::Unit& unit = *region->unit;
  TORCH_CHECK(unit.engine->may_read(), detail::sharded_message(unit.name()));
  const std::lock_guard lock(unit.engine->mutex);
  if (unit.pins++ == 0) {
    try {
      unit.engine->use(unit);
    } catch (...) {
      --unit.pins;
      throw;
    }
  }
  unit_ = unit.shared_from_this();
}

Use& Use::operator=(Use&& other) noexcept {
  std::swap(unit_, other.unit_);  // other.unit_ is released with `other`
  return *this;
}

Use::~Use() {
  if (!unit_) return;
  const std::lock_guard lock(unit_->engine->mutex);
  --unit_->pins;
}

}  // namespace fsdp
