#include "watch/overrides.h"

#include <array>
#include <utility>

#include "watch/sync_batch_norm.h"

namespace fsdp::detail {

OpOverride override_of(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, OpOverride>, 4> kTable{{
      {"aten::native_batch_norm", &native_batch_norm},
      {"aten::native_batch_norm_backward", &native_batch_norm_backward},
      {"aten::cudnn_batch_norm", &cudnn_batch_norm},
      {"aten::cudnn_batch_norm_backward", &cudnn_batch_norm_backward},
  }};
  for (const auto& [known, run] : kTable)
    if (known == name) return run;
  return nullptr;
}

}  // namespace fsdp::detail
