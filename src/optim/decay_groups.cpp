#include <fsdp/decay_groups.h>

#include "runtime/model.h"

namespace fsdp {

DecaySplit split_by_shape(const ShardedModel& model) {
  DecaySplit split;
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    const bool matrix = model.parameter_info(item.key()).shape.size() >= 2;
    (matrix ? split.matrices : split.vectors).push_back(item.value());
  }
  return split;
}

}  // namespace fsdp
