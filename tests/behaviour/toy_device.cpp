#include "behaviour/toy_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "behaviour/toy_races.h"

namespace fsdp::testing {

namespace {

constexpr auto kToy = c10::DeviceType::PrivateUse1;
constexpr uintptr_t kFar = uintptr_t{1} << 52;  // no address of a process has this bit

std::atomic<int64_t> bytes_in_use = 0;
std::atomic<int64_t> most_bytes = kToyUnlimited;
thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kToyDevices> current_streams{};
std::mutex waits_mutex;
std::vector<std::pair<c10::StreamId, c10::StreamId>> waits;

void* far_from(void* host) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(host) + kFar); }
void* near_to(void* toy) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(toy) - kFar); }

c10::StreamId& current_of(c10::Device device) {
  const auto index = device.has_index() ? device.index() : current_device;
  return current_streams.at(static_cast<size_t>(index));
}

c10::Stream stream_of(c10::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device.has_index() ? device : toy_device(current_device), id);
}

c10::Stream current_on(c10::Device device) { return stream_of(device, current_of(device)); }

struct Block {
  Block(size_t bytes, const c10::Stream& stream)
      : bytes(static_cast<int64_t>(bytes)), memory(std::malloc(bytes)), stream(stream) {
    TORCH_CHECK(memory != nullptr, "toy: no memory for ", bytes, " bytes");
    bytes_in_use += this->bytes;
    races::allocate(stream, far_from(memory), bytes);
  }
  ~Block() {
    races::free(stream, far_from(memory), static_cast<size_t>(bytes), others);
    std::free(memory);
    bytes_in_use -= bytes;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  int64_t bytes;
  void* memory;
  c10::Stream stream;                    // that it was allocated on
  std::vector<c10::Stream> others = {};  // that use it, by record_stream()
};

void delete_block(void* block) { delete static_cast<Block*>(block); }

struct ToyEvent {
  c10::StreamId stream = 0;
  HappensBefore::Clock reached = {};
};

struct AtomicCounts {
  std::atomic<int64_t> allocations = 0, host_waits = 0;
};
AtomicCounts counts;

// Ours are the operators that run inside Quiet, but for what the device does to carry them out.
void count(std::atomic<int64_t>& what) {
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Fake) && !races::Inside::now()) ++what;
}

class ToyAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device = toy_device(current_device);
    if (bytes == 0) return {nullptr, device};
    TORCH_CHECK_WITH(OutOfMemoryError, bytes_in_use + static_cast<int64_t>(bytes) <= most_bytes,
                     "toy: out of memory: ", bytes, " bytes asked, ", bytes_in_use.load(), " in use");
    count(counts.allocations);
    auto block = std::make_unique<Block>(bytes, current_on(device));
    void* memory = far_from(block->memory);
    return {memory, block.release(), &delete_block, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(near_to(to), near_to(const_cast<void*>(from)), bytes);
  }
};

ToyAllocator allocator;
REGISTER_ALLOCATOR(kToy, &allocator)

// Everything is done when it is asked for, so streams have names and nothing to wait for. Who would have
// waited is told to whoever looks for races.
class ToyGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kToy; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return toy_device(std::exchange(current_device, device.index()));
  }
  c10::Device getDevice() const override { return toy_device(current_device); }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kToyDevices; }

  c10::Stream getStream(c10::Device device) const override { return current_on(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*isHighPriority*/) const override {
    constexpr c10::StreamId kStreams = 32;
    static std::atomic<c10::StreamId> given = 0;
    return stream_of(device, 1 + given++ % kStreams);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(stream.device(), std::exchange(current_of(stream.device()), stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override { return races::host_waits(stream), true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    count(counts.host_waits);
    races::host_waits(stream);
  }
  void synchronizeDevice(c10::DeviceIndex) const override { races::host_waits_for_all(); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new ToyEvent;
    *static_cast<ToyEvent*>(*event) = {stream.id(), races::record(stream)};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto* toy = static_cast<ToyEvent*>(event);
    races::block(toy->reached, stream);
    const std::lock_guard lock(waits_mutex);
    waits.emplace_back(toy->stream, stream.id());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<ToyEvent*>(event);
  }
  bool queryEvent(void* event) const override {
    if (event != nullptr) races::host_waits(static_cast<ToyEvent*>(event)->reached);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    count(counts.host_waits);
    if (event != nullptr) races::host_waits(static_cast<ToyEvent*>(event)->reached);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    if (memory.get_deleter() == &delete_block)
      static_cast<Block*>(memory.get_context())->others.push_back(stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, ToyGuard)

struct ToyHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kToyDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return toy_pinned_allocator(); }
  bool isPinnedPtr(const void* memory) const override { return races::is_pinned(memory); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return generator; }
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
};

[[maybe_unused]] const bool kNamed = [] {
  static ToyHooks hooks;
  c10::register_privateuse1_backend("toy");
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

constexpr c10::DispatchKeySet kToyKeys(c10::DispatchKey::PrivateUse1);

c10::OptionalDeviceGuard on(std::optional<c10::Device> device) {
  return c10::OptionalDeviceGuard(device && device->has_index() ? device : std::nullopt);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const auto guard = on(device);
  return at::detail::empty_generic(size, &allocator, kToyKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const auto guard = on(device);
  return at::detail::empty_strided_generic(size, stride, &allocator, kToyKeys, c10::dtype_or_default(dtype));
}

// The same elements as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.numel() == 0) return tensor;
  return at::from_blob(near_to(tensor.mutable_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  if (to.is_cpu() && !non_blocking) count(counts.host_waits);
  races::copies(current_on(from.is_cpu() ? to.device() : from.device()), from, to, non_blocking);
  const races::Inside carried_out;
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) {
    const at::Tensor fresh = at::empty(from.sizes(), to.options());
    c10::TensorImpl& impl = *to.unsafeGetTensorImpl();
    impl.set_storage_keep_dtype(fresh.storage());
    impl.set_sizes_and_strides(fresh.sizes(), fresh.strides(), 0);
  }
  return copy_from(from, to, false);
}

// set_data() asks whether a tensor of another device may become one of this.
bool may_become(const at::Tensor&, const at::Tensor&) { return true; }

c10::Device device_of(const torch::jit::Stack& arguments) {
  std::optional<c10::Device> found;
  for (const c10::IValue& value : arguments)
    races::each_tensor(value, [&](const at::Tensor& tensor) {
      if (!found && tensor.defined() && !tensor.is_cpu()) found = tensor.device();
    });
  return found.value_or(toy_device(current_device));
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::Stream stream = current_on(device_of(*stack));
  races::inputs(stream, op, *stack);
  {
    const races::Inside carried_out;
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  }
  races::outputs(stream, op, *stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, registry) {
  registry.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, registry) {
  registry.impl("empty.memory_format", &empty);
  registry.impl("empty_strided", &empty_strided);
  registry.impl("_copy_from", &copy_from);
  registry.impl("_copy_from_and_resize", &copy_and_resize);
  registry.impl("_has_compatible_shallow_copy_type", &may_become);
  registry.impl("as_strided", &at::native::as_strided_tensorimpl);
  registry.impl("view", &at::native::view);
  // Left to LibTorch, it is taken apart for devices from outside, resizes an output and warns of that.
  registry.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  registry.impl("_reshape_alias", &at::native::_reshape_alias);
}

}  // namespace

c10::Device toy_device(int index) { return {kToy, static_cast<c10::DeviceIndex>(index)}; }

ToyCounts toy_counts() { return {counts.allocations, counts.host_waits}; }

std::vector<std::pair<c10::StreamId, c10::StreamId>> toy_waits() {
  const std::lock_guard lock(waits_mutex);
  return std::exchange(waits, {});
}

int64_t toy_bytes() { return bytes_in_use; }

void toy_limit(int64_t bytes) { most_bytes = bytes; }

}  // namespace fsdp::testing
