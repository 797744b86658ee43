#include "watch/op_traits.h"

#include <string_view>
#include <unordered_map>

namespace fsdp::detail {

namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  for (const auto& one : names)
    if (name == one) return true;
  return false;
}

// True if every result aliases an argument that is not written to.
bool returns_views_only(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  for (const auto& result : schema.returns())
    if (result.alias_info() == nullptr || result.alias_info()->isWrite()) return false;
  return true;
}

// True for operators that may copy, though their schema promises a view.
bool may_copy(std::string_view name) {
  return is_one_of(name, {"aten::contiguous", "aten::reshape", "aten::to", "aten::flatten"});
}

// True for tensors made of other tensors: sparse ones, and results of set_().
bool hides_inputs(std::string_view name) {
  const bool sparse = name.find("sparse_") != std::string_view::npos;
  return (sparse && name.find("_tensor") != std::string_view::npos) ||
         is_one_of(name, {"aten::set_", "aten::_nested_view_from_buffer"});
}

// False for operators whose result depends on the dtypes of their inputs, not on values alone.
bool may_cast_inputs(std::string_view name, const OpTraits& traits) {
  return traits.writes == 0 && !traits.view && !traits.metadata && !traits.hides &&
         name.find("_backward") == std::string_view::npos &&
         !is_one_of(name, {"aten::to", "aten::_to_copy", "aten::type_as", "aten::result_type",
                           "aten::_has_compatible_shallow_copy_type"});
}

OpTraits find_traits(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view name = schema.name();
  OpTraits traits;
  traits.arguments = schema.arguments().size();
  traits.hides = hides_inputs(name);
  traits.instead = override_of(name);
  traits.norm = is_one_of(name, {"aten::norm", "aten::linalg_vector_norm", "aten::_foreach_norm",
                                 "aten::linalg_norm", "aten::frobenius_norm", "aten::nuclear_norm"});
  traits.joins = is_one_of(name, {"aten::cat", "aten::dot", "aten::vdot", "aten::concat"});
  traits.absolute = name == "aten::abs" && schema.overload_name().empty();
  traits.largest = is_one_of(name, {"aten::amax", "aten::aminmax"}) ||
                   (name == "aten::max" && schema.overload_name() != "other");
  for (size_t i = 0; i < traits.arguments && i < 64; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) traits.writes |= uint64_t{1} << i;
    if (is_one_of(schema.arguments()[i].name(), {"running_mean", "running_var"}))
      traits.statistics |= uint64_t{1} << i;
  }
  traits.metadata = op.hasTag(at::Tag::inplace_view) ||
                    is_one_of(name, {"aten::requires_grad_", "aten::detach_", "aten::retain_grad"});
  traits.view = traits.writes == 0 && returns_views_only(schema) && !may_copy(name);
  traits.casts = may_cast_inputs(name, traits);
  return traits;
}

}  // namespace

const OpTraits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OpTraits> known;
  const c10::FunctionSchema* schema = &op.schema();
  const auto found = known.find(schema);
  return found != known.end() ? found->second : known.emplace(schema, find_traits(op)).first->second;
}

}  // namespace fsdp::detail
