#include "shard/tape.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fsdp/on_meta.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>

#include "watch/unit_casts.h"

namespace fsdp::detail {

namespace {

constexpr c10::DispatchKey kTapingKey = c10::DispatchKey::DeferredInit;

thread_local std::shared_ptr<Tape> running;

// The context of a taped storage's pointer.
struct Mark {
  std::shared_ptr<Tape> tape;
  int64_t number;
};

void drop_mark(void* mark) { delete static_cast<Mark*>(mark); }

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

Mark* mark_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  return storage_of(tensor)._mutable_data_ptr_no_checks().cast_context<Mark>(&drop_mark);
}

at::Tensor over(const c10::Storage& storage, const TapedTensor& place) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(place.type).device(storage.device()));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(place.sizes, place.strides, place.offset);
  return tensor;
}

// While it lives, the default generator draws from `state`, which is updated. Only one at a time: the process
// has one default generator, and ranks may be threads.
class BorrowedGenerator {
 public:
  explicit BorrowedGenerator(at::Tensor& state) : state_(state), lock_(mutex()) {
    own_ = generator_.get_state();
    generator_.set_state(state_);
  }
  ~BorrowedGenerator() {
    state_ = generator_.get_state();
    generator_.set_state(own_);
  }
  BorrowedGenerator(const BorrowedGenerator&) = delete;
  BorrowedGenerator& operator=(const BorrowedGenerator&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  at::Tensor& state_;
  std::lock_guard<std::mutex> lock_;
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  at::Tensor own_;
};

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kTapingKey);
  if (running)
    running->record(op, *stack);
  else
    call_with_casts(op, *stack);
}

TORCH_LIBRARY_IMPL(_, DeferredInit, registry) {
  registry.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
}

}  // namespace

struct Taping::Scope {
  std::shared_ptr<Tape> outer = std::exchange(running, std::make_shared<Tape>());
  c10::impl::IncludeDispatchKeyGuard seen{kTapingKey};
  ~Scope() { running = std::move(outer); }
};

Taping::Taping() : scope_(std::make_unique<Scope>()) {}
Taping::~Taping() = default;

Tape::Tape() : random_state(at::detail::getDefaultCPUGenerator().get_state()) {}

std::shared_ptr<Tape> Tape::of(const at::Tensor& tensor) {
  const Mark* mark = mark_of(tensor);
  return mark != nullptr ? mark->tape : nullptr;
}

TapedTensor Tape::place_of(const at::Tensor& tensor) {
  return {.storage = mark_of(tensor)->number,
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .offset = tensor.storage_offset(),
          .type = tensor.scalar_type()};
}

Tape::Input Tape::note_input(const c10::IValue& value) {
  const auto place = [&](const c10::IValue& one) -> std::optional<TapedTensor> {
    if (!one.isTensor() || of(one.toTensor()).get() != this) return std::nullopt;
    return place_of(one.toTensor());
  };
  Input input{.value = value, .tensors = {}};
  if (value.isTensor()) {
    if (const auto taped = place(value)) input = {.value = {}, .tensors = {taped}};
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    auto others =
        c10::impl::GenericList(value.toList().elementType());  // the tape keeps no tensor of its own
    for (const c10::IValue& element : value.toListRef()) {
      input.tensors.push_back(place(element));
      others.push_back(input.tensors.back() ? c10::IValue() : element);
    }
    if (std::any_of(input.tensors.begin(), input.tensors.end(),
                    [](const auto& one) { return one.has_value(); }))
      input.value = others;
    else
      input.tensors.clear();
  }
  return input;
}

int64_t Tape::number_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return -1;
  if (const Mark* mark = mark_of(tensor)) return mark->tape.get() == this ? mark->number : -1;
  storage_of(tensor).set_data_ptr_noswap(
      at::DataPtr(nullptr, new Mark{shared_from_this(), storages_}, &drop_mark, at::kMeta));
  return storages_++;
}

void Tape::note_outputs(Entry& entry, const torch::jit::Stack& stack, size_t count) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor())
      entry.outputs.push_back(number_of(stack[i].toTensor()));
    else if (stack[i].isTensorList())
      for (const at::Tensor& tensor : stack[i].toTensorVector()) entry.outputs.push_back(number_of(tensor));
  }
}

void Tape::record(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  Entry entry{.op = op, .inputs = {}, .outputs = {}};
  bool taped = false;
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = stack[stack.size() - count + i];
    entry.inputs.push_back(note_input(value));
    taped = taped || !entry.inputs.back().tensors.empty();
    if (schema.arguments()[i].name() == "device") value = c10::Device(c10::kMeta);
  }
  for (size_t i = stack.size() - count; taped && i < stack.size();
       ++i)  // constants beside tensors of the tape
    if (stack[i].isTensor() && stack[i].toTensor().defined() && !stack[i].toTensor().is_meta())
      stack[i] = stack[i].toTensor().to(at::kMeta);
  try {
    op.callBoxed(&stack);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "fsdp: on_meta(): ", schema.name(), " cannot run without memory (",
                std::string(error.what()).substr(0, std::string(error.what()).find('\n')),
                "). Make the module without on_meta(), or leave this out of its constructor.");
  }
  note_outputs(entry, stack, schema.returns().size());
  const bool ours =
      taped || std::any_of(entry.outputs.begin(), entry.outputs.end(), [](int64_t n) { return n >= 0; });
  if (ours) entries_.push_back(std::move(entry));
}

std::vector<size_t> Tape::last_uses() const {
  std::vector<size_t> last(static_cast<size_t>(storages_), 0);
  for (size_t i = 0; i < entries_.size(); ++i) {
    for (const Input& input : entries_[i].inputs)
      for (const auto& tensor : input.tensors)
        if (tensor) last[static_cast<size_t>(tensor->storage)] = i;
    for (const int64_t output : entries_[i].outputs)
      if (output >= 0) last[static_cast<size_t>(output)] = i;
  }
  return last;
}

void Tape::run(const Entry& entry, Storages& storages) {
  torch::jit::Stack stack;
  const auto real = [&](const TapedTensor& place) { return over(storages.at(place.storage), place); };
  for (const Input& input : entry.inputs) {
    if (input.tensors.empty()) {
      stack.push_back(input.value);
    } else if (input.value.isNone()) {
      stack.emplace_back(real(*input.tensors.front()));
    } else {
      auto list = c10::impl::GenericList(input.value.toList().elementType());
      const auto elements = input.value.toListRef();
      for (size_t i = 0; i < elements.size(); ++i)
        list.push_back(input.tensors[i] ? c10::IValue(real(*input.tensors[i])) : elements[i]);
      stack.emplace_back(list);
    }
  }
  entry.op.callBoxed(&stack);
  size_t next = 0;
  const auto keep = [&](const at::Tensor& tensor) {
    const int64_t number = entry.outputs[next++];
    if (number >= 0 && tensor.defined()) storages.try_emplace(number, tensor.storage());
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor())
      keep(value.toTensor());
    else if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) keep(tensor);
  }
}

void Tape::replay(const std::vector<TapedTensor>& wanted,
                  const std::function<void(size_t, const at::Tensor&)>& done) const {
  const at::NoGradGuard no_grad;
  std::unordered_map<int64_t, std::vector<size_t>> wanted_of;
  for (size_t i = 0; i < wanted.size(); ++i) wanted_of[wanted[i].storage].push_back(i);
  std::vector<std::vector<int64_t>> ending(entries_.size());  // storages by the entry that is their last use
  const std::vector<size_t> last = last_uses();
  for (size_t number = 0; number < last.size(); ++number)
    ending[last[number]].push_back(static_cast<int64_t>(number));
  Storages storages;
  at::Tensor random = random_state.clone();
  for (size_t i = 0; i < entries_.size(); ++i) {
    std::optional<BorrowedGenerator> drawing;
    if (entries_[i].op.hasTag(at::Tag::nondeterministic_seeded)) drawing.emplace(random);
    run(entries_[i], storages);
    for (const int64_t number : ending[i]) {
      for (const size_t which : wanted_of[number]) done(which, over(storages.at(number), wanted[which]));
      storages.erase(number);
    }
  }
}

}  // namespace fsdp::detail
