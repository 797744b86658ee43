#include "shard/wrap.h"

#include <algorithm>
#include <utility>

#include "shard/module_walk.h"

namespace fsdp {

namespace detail {
bool never(const ModuleInfo& /*module*/) { return false; }
}  // namespace detail

WrapPolicy whole_model() { return detail::never; }

WrapPolicy by_size(int64_t min_num_params) {
  return [min_num_params](const ModuleInfo& info) { return info.free_elements >= min_num_params; };
}

WrapPolicy by_type_name(std::vector<std::string> types) {
  return [types = std::move(types)](const ModuleInfo& info) {
    const std::string full = info.module->name();
    return std::any_of(types.begin(), types.end(), [&](const std::string& type) {
      return type == info.type || type + "Impl" == info.type || type == full;
    });
  };
}

namespace detail {

UnitPolicy layout_policy(const fsdp::WrapPolicy& policy, const ModuleDecl& root) {
  if (!policy) return wrap_automatic(root);
  return [policy](const ModuleDecl& module, int64_t free_elements) {
    return policy({.path = module.path,
                   .type = module.type,
                   .module = static_cast<const torch::nn::Module*>(module.origin),
                   .free_elements = free_elements});
  };
}

}  // namespace detail
}  // namespace fsdp
