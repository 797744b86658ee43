#include "watch/unit_casts.h"

#include <optional>
#include <vector>

#include "watch/op_traits.h"
#include "watch/owner.h"
#include "watch/tag.h"

namespace fsdp::detail {

namespace {

// A parameter that an operator reads: its unit, and its current dtype.
struct ReadParameter {
  const WatchedUnit* unit = nullptr;
  at::ScalarType type = at::kFloat;
  bool several_types = false;

  void look_at(const at::Tensor& tensor) {
    const WatchedRegion* region = region_of(tensor, TagKind::parameter);
    if (region == nullptr) return;
    several_types = several_types || (unit != nullptr && type != tensor.scalar_type());
    unit = &region->owner();
    type = tensor.scalar_type();
  }
};

ReadParameter parameter_among(const torch::jit::Stack& stack, size_t first) {
  ReadParameter read;
  for (size_t i = first; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      read.look_at(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      for (const at::Tensor& tensor : stack[i].toTensorVector()) read.look_at(tensor);
    }
  }
  return read;
}

bool is_cast(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != type &&
         !tensor.unsafeGetTensorImpl()->is_wrapped_number() && tag_of(tensor) == nullptr;
}

void cast_value(c10::IValue& value, at::ScalarType type) {
  if (value.isTensor()) {
    if (is_cast(value.toTensor(), type)) value = value.toTensor().to(type);
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors)
      if (is_cast(tensor, type)) tensor = tensor.to(type);
    value = c10::IValue(std::move(tensors));
  }
}

}  // namespace

at::Tensor with_casts(const at::Tensor& tensor) {
  at::Tensor seen = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), tensor.key_set().add(c10::DispatchKey::DeferredInit), tensor.dtype());
  seen.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return seen;
}

void call_with_casts(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const OpTraits& traits = traits_of(op);
  const size_t first = stack.size() - traits.arguments;
  const ReadParameter read = traits.casts ? parameter_among(stack, first) : ReadParameter{};
  if (read.unit == nullptr || read.several_types || !c10::isFloatingType(read.type))
    return op.callBoxed(&stack);
  if (read.unit->casts_inputs())
    for (size_t i = 0; i < traits.arguments; ++i)
      if (!traits.is_statistic(i)) cast_value(stack[first + i], read.type);
  op.callBoxed(&stack);
  if (const auto type = read.unit->output_type())
    for (size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i)
      cast_value(stack[i], *type);
}

}  // namespace fsdp::detail
