#include "behaviour/toy_races.h"

#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>

#include <map>
#include <memory>
#include <mutex>

namespace fsdp::testing {

namespace {

std::mutex mutex;                       // of what follows
std::unique_ptr<HappensBefore> model;   // while a RaceCheck lives
std::map<uintptr_t, uintptr_t> pinned;  // begin and end
thread_local int inside = 0;

HappensBefore::Actor actor_of(const c10::Stream& stream) {
  constexpr int64_t kStreams = 1'000'000;  // of a device
  return stream.device_index() * kStreams + stream.id();
}

uintptr_t address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

// From the first element to the last, with what lies between them.
HappensBefore::Bytes bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto begin = address(tensor.const_data_ptr());
  return {begin, begin + static_cast<uintptr_t>(last + 1) * tensor.element_size()};
}

bool lies_in_pinned(uintptr_t at) {
  const auto next = pinned.upper_bound(at);
  return next != pinned.begin() && at < std::prev(next)->second;
}

void host_access(HappensBefore::Bytes bytes, bool write, const std::string& what) {
  if (model && lies_in_pinned(bytes.begin)) model->access(HappensBefore::kHost, bytes, write, what);
}

// What an operator of the CPU does to pinned memory: noted when it starts, recorded when it has ended, since
// it may wait for others before its kernel.
struct HostAccesses final : at::ObserverContext {
  struct One {
    HappensBefore::Bytes bytes;
    bool write;
  };
  std::string op;
  std::vector<One> all;
};

bool of_kernel(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name == "aten::copy_") return true;
  const auto& returns = op.schema().returns();
  const bool view =
      !returns.empty() && returns[0].alias_info() != nullptr && !returns[0].alias_info()->isWrite();
  return !view && op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

std::unique_ptr<at::ObserverContext> starts(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  if (inside > 0 || !name) return nullptr;
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op || !of_kernel(*op)) return nullptr;
  auto noted = std::make_unique<HostAccesses>();
  noted->op = name->name;
  const auto& arguments = op->schema().arguments();
  bool all_here = true;
  for (size_t i = 0; i < function.inputs().size() && i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    const bool write = alias != nullptr && alias->isWrite();
    races::each_tensor(function.inputs()[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      all_here = all_here && tensor.is_cpu() && tensor.layout() == at::kStrided;
      if (all_here) noted->all.push_back({bytes_of(tensor), write});
    });
  }
  if (!all_here || noted->all.empty()) return nullptr;
  return noted;
}

void ends(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  const auto* noted = static_cast<HostAccesses*>(context);
  if (noted == nullptr) return;
  const std::lock_guard lock(mutex);
  for (const auto& one : noted->all) host_access(one.bytes, one.write, noted->op);
}

// Memory of the CPU's allocator, and where it lies. What is freed is not given out again before copies that
// are in flight are done with it.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    auto block = std::make_unique<c10::DataPtr>(c10::GetCPUAllocator()->allocate(bytes));
    void* memory = block->get();
    const std::lock_guard lock(mutex);
    pinned[address(memory)] = address(memory) + bytes;
    return {memory, block.release(), &give_back, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void give_back(void* context) {
    const std::unique_ptr<c10::DataPtr> block(static_cast<c10::DataPtr*>(context));
    const std::lock_guard lock(mutex);
    const auto range = pinned.find(address(block->get()));
    if (model) model->forget({range->first, range->second});
    pinned.erase(range);
  }
};

}  // namespace

c10::Allocator* toy_pinned_allocator() {
  static PinnedAllocator allocator;
  return &allocator;
}

RaceCheck::RaceCheck() {
  const std::lock_guard lock(mutex);
  TORCH_CHECK(!model, "a RaceCheck lives already");
  model = std::make_unique<HappensBefore>();
  callback_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&starts, &ends).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

RaceCheck::~RaceCheck() {
  at::removeCallback(callback_);
  const std::lock_guard lock(mutex);
  model.reset();
}

std::vector<std::string> RaceCheck::found() const {
  const std::lock_guard lock(mutex);
  return model->races();
}

void toy_touch(const at::Tensor& tensor, bool write, const char* what) {
  TORCH_CHECK(tensor.is_cpu(), "toy_touch() of a tensor on ", tensor.device());
  const std::lock_guard lock(mutex);
  host_access(bytes_of(tensor), write, what);
}

namespace races {

HappensBefore::Clock record(const c10::Stream& stream) {
  const std::lock_guard lock(mutex);
  return model ? model->record(actor_of(stream)) : HappensBefore::Clock();
}

void block(const HappensBefore::Clock& reached, const c10::Stream& stream) {
  const std::lock_guard lock(mutex);
  if (model) model->wait(actor_of(stream), reached);
}

void host_waits(const HappensBefore::Clock& reached) {
  const std::lock_guard lock(mutex);
  if (model) model->wait(HappensBefore::kHost, reached);
}

void host_waits(const c10::Stream& stream) {
  const std::lock_guard lock(mutex);
  if (model) model->wait(HappensBefore::kHost, model->record(actor_of(stream)));
}

void host_waits_for_all() {
  const std::lock_guard lock(mutex);
  if (model) model->host_waits_for_all();
}

void inputs(const c10::Stream& stream, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (Inside::now()) return;
  const auto& arguments = op.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
      access(stream, tensor, alias != nullptr && alias->isWrite(), op.schema().name());
    });
  }
}

void outputs(const c10::Stream& stream, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (Inside::now()) return;
  const size_t count = op.schema().returns().size();
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!stack[i].isTensor() && !stack[i].isList()) host_waits(stream);
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      access(stream, tensor, /*write=*/true, op.schema().name());
    });
  }
}

void copies(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (Inside::now()) return;
  access(stream, from, /*write=*/false, "copy_");
  access(stream, to, /*write=*/true, "copy_");
  const bool with_host = from.is_cpu() || to.is_cpu();
  const bool into_pageable = to.is_cpu() && !is_pinned(to.const_data_ptr());
  if (with_host && (!non_blocking || into_pageable)) host_waits(stream);
}

void access(const c10::Stream& stream, const at::Tensor& tensor, bool write, const std::string& what) {
  const std::lock_guard lock(mutex);
  if (!model || !tensor.defined()) return;
  const HappensBefore::Bytes bytes = bytes_of(tensor);
  if (!tensor.is_cpu() || lies_in_pinned(bytes.begin)) model->access(actor_of(stream), bytes, write, what);
}

void allocate(const c10::Stream& stream, const void* memory, size_t bytes) {
  const std::lock_guard lock(mutex);
  if (model)
    model->access(actor_of(stream), {address(memory), address(memory) + bytes}, /*write=*/true, "allocation");
}

void free(const c10::Stream& allocated_on, const void* memory, size_t bytes,
          const std::vector<c10::Stream>& others) {
  const std::lock_guard lock(mutex);
  if (!model) return;
  std::vector<HappensBefore::Actor> waited;
  for (const c10::Stream& other : others) waited.push_back(actor_of(other));
  model->free(actor_of(allocated_on), {address(memory), address(memory) + bytes}, waited);
}

bool is_pinned(const void* memory) {
  const std::lock_guard lock(mutex);
  return lies_in_pinned(address(memory));
}

void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& fn) {
  if (value.isTensor()) {
    fn(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& one : value.toTensorVector()) fn(one);
  } else if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) each_tensor(one, fn);
  }
}

Inside::Inside() { ++inside; }
Inside::~Inside() { --inside; }
bool Inside::now() { return inside > 0; }

}  // namespace races

}  // namespace fsdp::testing
