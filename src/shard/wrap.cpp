#include "shard/wrap.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "shard/module_walk.h"

namespace fsdp {

namespace detail {
bool never(const ModuleInfo& /*module*/) { return false; }
}  // namespace detail

Precision fp32() { return {}; }
Precision bf16() { return {.param = at::kBFloat16, .reduce = at::kFloat}; }
Precision fp16() { return {.param = at::kHalf, .reduce = at::kFloat}; }
Precision bf16_true() {
  return {.param = at::kBFloat16, .reduce = at::kBFloat16, .buffer = at::kBFloat16, .master = at::kBFloat16};
}

namespace {

// The value of `name` in any case, among `known`.
template <class Value>
Value parse(const char* what, const std::string& name,
            const std::vector<std::pair<std::string, Value>>& known) {
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string names;
  for (const auto& [one, value] : known) {
    if (one == lower) return value;
    names += (names.empty() ? "" : ", ") + one;
  }
  TORCH_CHECK(false, "fsdp: no ", what, " '", name, "'; there are ", names);
}

}  // namespace

Strategy parse_strategy(const std::string& name) {
  return parse<Strategy>("strategy", name,
                         {{"full_shard", Strategy::full_shard},
                          {"shard_grad_op", Strategy::shard_grad_op},
                          {"no_shard", Strategy::no_shard},
                          {"hybrid_shard", Strategy::hybrid_shard},
                          {"hybrid_shard_zero2", Strategy::hybrid_shard_zero2}});
}

Precision parse_precision(const std::string& name) {
  return parse<Precision>(
      "precision", name,
      {{"32", fp32()}, {"bf16-mixed", bf16()}, {"16-mixed", fp16()}, {"bf16-true", bf16_true()}});
}

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
