#include "watch/observer.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>

#include "watch/messages.h"
#include "watch/op_traits.h"
#include "watch/owner.h"
#include "watch/tag.h"

namespace fsdp::detail {

namespace {

using Arguments = std::span<const c10::IValue>;

// Calls fn(argument index, tensor) for every tensor among the arguments. A list counts as one of tensors if
// its first element is one, or is none, as in a list of optional tensors.
template <class Fn>
void for_each_tensor(Arguments arguments, Fn fn) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      fn(i, value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor())
          fn(i, element.toTensor());
        else if (!element.isNone())
          break;
      }
    }
  }
}

std::string gradient_norm_message() {
  return "fsdp: a norm over gradient slices is that of this rank only; use model.clip_grad_norm_(), or "
         "model.gradient_norms() for the norms of whole gradients";
}

// The error for an operator that has `tensor` as its argument `i`; empty: no error.
std::string objection(const OpTraits& traits, size_t i, const at::Tensor& tensor, const Tag& tag,
                      const WatchedRegion* region) {
  if (tag.kind == TagKind::magnitudes) return traits.largest ? gradient_norm_message() : "";
  if (region == nullptr) return tag.kind == TagKind::parameter ? dropped_message() : "";
  if (tag.kind == TagKind::parameter) {
    const auto name = [&] { return region->name_at(tensor.storage_offset()); };
    if (traits.hides && traits.writes_argument(i))
      return "fsdp: parameter '" + name() +
             "' is given other memory by torch::load() or set_(); of a sharded parameter only the shard "
             "lasts. Load the module inside model.full_params(true).";
    if (traits.hides && !region->is_permanent())
      return "fsdp: parameter '" + name() +
             "' becomes part of another tensor by its memory (a sparse tensor, set_()), which is gone when "
             "the parameter is released; give a clone() of it";
    if (!region->owner().may_read()) return sharded_message(name());
    if (traits.writes_argument(i))
      return "fsdp: parameter '" + name() +
             "' is written inside forward; the write would be lost, since only the shard lasts. Write in "
             "model.full_params(true), or put the module on the ignored list.";
  }
  if (tag.kind == TagKind::shard && region->owner().is_sharded() && traits.norm)
    return "fsdp: a norm over a slice of a parameter is that of this rank's part only; "
           "model.parameter_norms() has those of whole parameters";
  if (tag.kind == TagKind::gradient && region->owner().is_sharded()) {
    if (traits.norm) return gradient_norm_message();
    if (traits.joins)
      return "fsdp: whole-vector optimizers such as LBFGS see only this rank's slices; use an elementwise "
             "one "
             "(SGD, Adam, AdamW, RMSprop, Adagrad)";
  }
  return "";
}

// One operator with a watched input: gathers and pins its units, and unpins them afterwards.
class Passage {
 public:
  Passage(const OpTraits& traits, Arguments arguments) {
    if ((!traits.view && !traits.metadata) || traits.hides) open_units(traits, arguments);
    lend_storages(arguments);
  }
  ~Passage() {
    unpin();
    for (const Lent& one : lent_) {
      // An operator inside may have gathered the unit: then the tensor keeps the lent storage.
      const std::lock_guard lock(one.region->owner().mutex());
      if (!one.region->owner().is_gathered())
        one.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(one.own);
    }
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

  // The exception to throw if the kernel threw `error`.
  std::exception_ptr explain(const std::exception_ptr& error) const {
    return pinned_.empty() ? error : pinned_.front()->explain(error);
  }
  // Adds to the kernel's `error` which operator threw it and which parameter that read: LibTorch's sentence
  // has neither. An operator inside this one may have done so.
  void locate(c10::Error& error, const c10::OperatorHandle& op) const {
    if (read_ == nullptr || !error.context().empty() || error.msg().starts_with("fsdp:")) return;
    error.add_context("in " + op.schema().name() + ", which reads parameter '" + read_->name_at(offset_) +
                      "'");
  }

 private:
  struct Lent {
    at::Tensor tensor;
    c10::Storage own;
    const WatchedRegion* region;
  };

  void open_units(const OpTraits& traits, Arguments arguments);
  void unpin() {
    for (WatchedUnit* unit : pinned_) {
      const std::lock_guard lock(unit->mutex());
      unit->unpin();
    }
    pinned_.clear();
  }
  void lend_storages(Arguments arguments);

  c10::SmallVector<Lent, 1> lent_;
  c10::SmallVector<WatchedUnit*, 4> pinned_;
  const WatchedRegion* read_ = nullptr;  // of the first parameter among the arguments
  int64_t offset_ = 0;                   // its storage offset
};

[[noreturn]] void refuse(const WatchedRegion* region, const std::string& message) {
  auto error =
      std::make_exception_ptr(c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message));
  if (region != nullptr) error = region->owner().explain(error);
  std::rethrow_exception(error);
}

void Passage::open_units(const OpTraits& traits, Arguments arguments) {
  c10::SmallVector<WatchedUnit*, 4> units, written;
  const WatchedUnit* told = nullptr;  // the last unit told about a moment write: lists name a unit many times
  for_each_tensor(arguments, [&](size_t i, const at::Tensor& tensor) {
    const Tag* tag = tag_of(tensor);
    if (tag == nullptr) return;
    const WatchedRegion* region = tag->region;
    if (const std::string wrong = objection(traits, i, tensor, *tag, region); !wrong.empty())
      refuse(region, wrong);
    if (region == nullptr) return;
    WatchedUnit* unit = &region->owner();
    if (tag->kind != TagKind::parameter) unit->before_touch();
    if (tag->kind == TagKind::shard && traits.writes_argument(i)) {
      unit->before_write();
      written.push_back(unit);
    }
    if (tag->kind == TagKind::moment && traits.writes_argument(i) && unit != std::exchange(told, unit))
      unit->before_moment_write();
    if (tag->kind != TagKind::parameter) return;
    if (read_ == nullptr) read_ = region, offset_ = tensor.storage_offset();
    if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
  });
  // Another thread waits until the units are gathered.
  c10::SmallVector<std::unique_lock<std::recursive_mutex>, 2> locks;
  try {
    for (WatchedUnit* unit : units) {
      locks.emplace_back(unit->mutex());
      unit->pin();
      pinned_.push_back(unit);
    }
    for (WatchedUnit* unit : units) unit->use();
    if (!units.empty())
      for (const WatchedUnit* unit : written) unit->check_write();
  } catch (...) {
    const auto error = units.front()->explain(std::current_exception());
    unpin();
    std::rethrow_exception(error);
  }
}

// A view of a released parameter must be a view of the storage to be gathered, not of the poison. A tensor
// that took the poison along (data(), a copy of the handle) reads the gathered values.
void Passage::lend_storages(Arguments arguments) {
  for_each_tensor(arguments, [&](size_t, const at::Tensor& tensor) {
    const WatchedRegion* region = region_of(tensor, TagKind::parameter);
    if (region == nullptr) return;
    const std::lock_guard lock(region->owner().mutex());
    const c10::Storage& real = region->view_storage();
    if (tensor.storage().unsafeGetStorageImpl() == real.unsafeGetStorageImpl()) return;
    lent_.push_back({tensor, tensor.storage(), region});
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(real);
  });
}

// The unit of a parameter among the arguments; null: there is none.
WatchedUnit* unit_among(Arguments arguments) {
  WatchedUnit* unit = nullptr;
  for_each_tensor(arguments, [&](size_t, const at::Tensor& tensor) {
    if (const WatchedRegion* region = region_of(tensor, TagKind::parameter)) unit = &region->owner();
  });
  return unit;
}

// An infinity norm is two operators: abs(), and then max() of its result.
bool makes_magnitudes(const OpTraits& traits, Arguments arguments) {
  if (!traits.absolute) return false;
  const WatchedRegion* region = region_of(arguments.front().toTensor(), TagKind::gradient);
  return region != nullptr && region->owner().is_sharded();
}

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kWatchedKey);
  const OpTraits& traits = traits_of(op);
  const Arguments arguments = Arguments(*stack).last(traits.arguments);
  const Passage passage(traits, arguments);
  if (traits.instead != nullptr)
    if (WatchedUnit* unit = unit_among(arguments); unit != nullptr && traits.instead(*stack, *unit)) return;
  const bool magnitudes = makes_magnitudes(traits, arguments);
  try {
    op.redispatchBoxed(keys & kBelow, stack);
  } catch (const c10::OutOfMemoryError&) {
    std::rethrow_exception(passage.explain(std::current_exception()));
  } catch (c10::Error& error) {
    passage.locate(error, op);
    throw;
  }
  if (!magnitudes) return;
  const at::Tensor result = torch::jit::pop(*stack).toTensor();
  mark(result, TagKind::magnitudes, nullptr);
  torch::jit::push(*stack, watched(result));
}

// For operators that consist of others and read the memory of their inputs themselves: gathers their units
// before the first inner operator runs.
void on_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OpTraits& traits = traits_of(op);
  const Passage passage(traits, Arguments(*stack).last(traits.arguments));
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// Recurrent layers: cuDNN's check whether the weights are contiguous. Only a kernel for a backend's own key
// takes precedence over the composite kernel.
const std::vector<torch::Library>& recurrent_layers() {
  static const std::vector<torch::Library> registered = [] {
    std::vector<torch::Library> libraries;
    for (auto backend = static_cast<uint8_t>(c10::BackendComponent::InvalidBit) + 1;
         backend <= static_cast<uint8_t>(c10::BackendComponent::EndOfBackendKeys); ++backend) {
      const auto key = c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::AutogradFunctionality,
                                                                static_cast<c10::BackendComponent>(backend));
      auto& library = libraries.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      for (const char* name : {"lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input",
                               "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data"})
        library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_composite>());
    }
    return libraries;
  }();
  return registered;
}
[[maybe_unused]] const auto& registered_layers = recurrent_layers();

TORCH_LIBRARY_IMPL(_, Fake, registry) {
  registry.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
}

}  // namespace

at::Tensor watched_over(const c10::Storage& storage, const at::Tensor& like) {
  at::Tensor seen = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                             like.key_set().add(kWatchedKey), like.dtype());
  seen.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return seen;
}

at::Tensor watched(const at::Tensor& tensor) { return watched_over(tensor.storage(), tensor); }

}  // namespace fsdp::detail
