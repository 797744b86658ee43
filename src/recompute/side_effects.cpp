#include "recompute/side_effects.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace fsdp::detail {

namespace {

thread_local SideEffects* innermost = nullptr;

// The arguments that an operator may write to, and those that may be generators.
struct Arguments {
  size_t count = 0;
  std::vector<size_t> written, generators;
  std::vector<size_t> statistics;  // written where argument `training` is true
  std::optional<size_t> training;
};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The schemas of normalisations do not declare that they write to running statistics.
Arguments find_arguments(const c10::FunctionSchema& schema) {
  Arguments found;
  found.count = schema.arguments().size();
  for (size_t i = 0; i < found.count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const auto* alias = argument.alias_info();
    if (alias != nullptr && alias->isWrite())
      found.written.push_back(i);
    else if (is_one_of(argument.name(), {"running_mean", "running_var"}))
      found.statistics.push_back(i);
    if (is_one_of(argument.name(), {"training", "train", "use_input_stats"})) found.training = i;
    if (argument.name() == "generator") found.generators.push_back(i);
  }
  if (!found.training) found.statistics.clear();
  return found;
}

// The name belongs to the schema, and lives as long as its operator does.
const Arguments& arguments_of(const at::RecordFunction& record) {
  thread_local std::unordered_map<const char*, Arguments> known;
  const auto found = known.find(record.name());
  if (found != known.end()) return found->second;
  const auto schema = record.operator_schema();
  return known.emplace(record.name(), schema ? find_arguments(*schema) : Arguments{}).first->second;
}

// True for operators inside those that the function calls: kernels' own, and a sharded model's.
bool is_inner() {
  const c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  return excluded.has(c10::DispatchKey::AutogradFunctionality) || excluded.has(c10::DispatchKey::Fake);
}

template <class Fn>
void for_each_tensor(const c10::IValue& value, Fn fn) {
  if (value.isTensor())
    fn(value.toTensor());
  else if (value.isTensorList())
    for (const at::Tensor& one : value.toTensorVector()) fn(one);
}

}  // namespace

SideEffects::SideEffects(GeneratorStates* generators)
    : generators_(generators), outer_(std::exchange(innermost, this)) {
  if (outer_ == nullptr)
    callback_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

SideEffects::~SideEffects() {
  innermost = outer_;
  if (outer_ == nullptr) at::removeCallback(callback_);
}

std::unique_ptr<at::ObserverContext> SideEffects::on_operator(const at::RecordFunction& record) {
  if (innermost == nullptr) return nullptr;
  const Arguments& arguments = arguments_of(record);
  if (record.inputs().size() < arguments.count) return nullptr;
  const auto inputs = record.inputs().slice(record.inputs().size() - arguments.count);
  for (SideEffects* one = innermost; one != nullptr; one = one->outer_)
    for (const size_t i : arguments.generators)
      if (one->generators_ != nullptr && inputs[i].isGenerator())
        one->generators_->add(inputs[i].toGenerator());
  if (is_inner()) return nullptr;
  const bool training =
      arguments.training && inputs[*arguments.training].isBool() && inputs[*arguments.training].toBool();
  for (SideEffects* one = innermost; one != nullptr; one = one->outer_) {
    const auto note = [&](const at::Tensor& tensor) { one->note_write(tensor); };
    for (const size_t i : arguments.written) for_each_tensor(inputs[i], note);
    if (training)
      for (const size_t i : arguments.statistics) for_each_tensor(inputs[i], note);
  }
  return nullptr;
}

void SideEffects::note_write(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.requires_grad() || !tensor.has_storage() ||
      tensor.key_set().has(c10::DispatchKey::Fake))
    return;
  const auto storage =
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl());
  if (std::any_of(written_.begin(), written_.end(), [&](const Written& one) {
        return one.address == storage.get() && one.offset == tensor.storage_offset() &&
               tensor.sizes() == one.sizes && tensor.strides() == one.strides;
      }))
    return;
  written_.push_back({.storage = c10::weak_intrusive_ptr(storage),
                      .address = storage.get(),
                      .offset = tensor.storage_offset(),
                      .sizes = tensor.sizes().vec(),
                      .strides = tensor.strides().vec(),
                      .options = tensor.options()});
}

std::vector<at::Tensor> SideEffects::buffers(const std::vector<at::Tensor>& outputs) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> buffers;
  for (const Written& one : std::exchange(written_, {})) {
    const auto storage = one.storage.lock();
    const bool returned = std::any_of(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
      return output.defined() && output.has_storage() &&
             output.storage().unsafeGetStorageImpl() == one.address;
    });
    if (storage && !returned)
      buffers.push_back(
          at::empty({0}, one.options).set_(c10::Storage(storage), one.offset, one.sizes, one.strides));
  }
  return buffers;
}

BufferValues::BufferValues(const std::vector<at::Tensor>& buffers) : buffers_(buffers) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : buffers_) values_.push_back(buffer.clone());
}

BufferValues::~BufferValues() {
  const at::NoGradGuard no_grad;
  try {
    for (size_t i = 0; i < buffers_.size(); ++i) at::Tensor(buffers_[i]).copy_(values_[i]);
  } catch (const std::exception& error) {  // the device has failed, and the program will see that error
    TORCH_WARN("fsdp: recompute(): buffers keep the values of the second run: ", error.what());
  }
}

}  // namespace fsdp::detail
