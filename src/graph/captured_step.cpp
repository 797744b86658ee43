// Note [Captured steps]
// The recording has everything from model(...) to the end of backward: casts of the weights, gathers,
// gradients. The optimizer stays outside, so that its step counts and learning rates may live on the host. A
// replay repeats the work with other values at the same addresses. So the memory it uses (inputs, arena,
// gradients) is kept here, and the slices are given their gradients explicitly. A gradient that the program
// has kept is moved to other memory before the next replay would overwrite it.
//
// Autograd runs the last node of a parameter on the stream that was current when the node was made. That must
// be the recorded stream, so the nodes are made anew for it.
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fsdp/capture.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "graph/device_graph.h"
#include "runtime/engine.h"

namespace fsdp::detail {

namespace {

constexpr int kUsual = 3;  // steps before the recorded one: the plan is made after the first

bool same_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

std::vector<bool> trainable(const Engine& engine) {
  std::vector<bool> which;
  for (const UnitParam* param : engine.params) which.push_back(param->wants_grad());
  return which;
}

at::Tensor over(const c10::Storage& storage, const at::Tensor& like) {
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), like.key_set(), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// Moves the values of `storage` to other memory for all its tensors. Returns the memory that it had.
c10::Storage move_out(c10::StorageImpl& storage, const at::TensorOptions& options) {
  at::Tensor bytes = at::empty({0}, options.dtype(at::kByte));
  bytes.unsafeGetTensorImpl()->set_storage_keep_dtype(
      c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)));
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
  const at::Tensor copy = bytes.clone();
  at::DataPtr had = storage.set_data_ptr(copy.storage().unsafeGetStorageImpl()->set_data_ptr({}));
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(had), nullptr, /*resizable=*/false));
}

// While it lives, `side` is the current stream, ordered behind the previous one, which then waits for it.
class Aside {
 public:
  explicit Aside(const c10::Stream& side)
      : before_(c10::impl::VirtualGuardImpl(side.device_type()).getStream(side.device())),
        side_(side),
        guard_(side) {
    order(before_, side_);
  }
  ~Aside() { order(side_, before_); }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  static void order(const c10::Stream& first, const c10::Stream& then) {
    c10::Event reached(first.device_type());
    reached.record(first);
    reached.block(then);
  }

  c10::Stream before_, side_;
  c10::StreamGuard guard_;
};

}  // namespace

struct CapturedStep::State {
  explicit State(ShardedModel model_) : model(std::move(model_)) {}

  ShardedModel model;
  int steps = 0;
  int64_t replays = 0;
  bool possible = true;               // no sign so far that the step cannot be recorded
  std::optional<c10::Stream> stream;  // all steps run there; none: the device has no graphs
  bool moved = false;                 // parameters' last nodes were made on it
  std::unique_ptr<DeviceGraph> graph;
  std::vector<at::Tensor> inputs;
  std::vector<bool> trained;  // parameters that were not frozen then
  at::Tensor loss;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;  // of each slice that has one
  std::vector<at::Tensor> memory;                            // used by the recorded work, and not in its pool

  bool usual(const std::vector<at::Tensor>& given) const;
  at::Tensor run_usual(const std::vector<at::Tensor>& given, const Forward& forward);
  void record(const std::vector<at::Tensor>& given, const Forward& forward);
  void part_from_kept();
  at::Tensor replay(const std::vector<at::Tensor>& given);
};

// True for a step that cannot be replayed, or not by this recording.
bool CapturedStep::State::usual(const std::vector<at::Tensor>& given) const {
  if (!possible || current(model.engine()).mode || !at::GradMode::is_enabled() || !model.is_training() ||
      current(model.engine()).in_no_sync() || current(model.engine()).tells_gradients)
    return true;
  if (graph && (trained != trainable(current(model.engine())) || given.size() != inputs.size() ||
                !std::equal(given.begin(), given.end(), inputs.begin(), same_kind)))
    return true;
  const auto slices = model.parameters();
  return std::any_of(slices.begin(), slices.end(),
                     [](const at::Tensor& slice) { return slice.grad().defined(); });
}

at::Tensor CapturedStep::State::run_usual(const std::vector<at::Tensor>& given, const Forward& forward) {
  const at::Tensor result = forward(given);
  result.backward();
  return result.detach();
}

void CapturedStep::State::record(const std::vector<at::Tensor>& given, const Forward& forward) {
  Engine& engine = current(model.engine());
  engine.quiesce();
  for (const at::Tensor& one : given) inputs.push_back(one.clone());
  graph = make_device_graph(engine.world.device());
  graph->begin();
  try {
    loss = run_usual(inputs, forward);
  } catch (...) {
    const auto error = std::current_exception();
    try {
      graph->end();
    } catch (const std::exception&) {
      // It only says that the recording is broken; the cause is thrown below.
    }
    std::rethrow_exception(error);
  }
  graph->end();
  for (const at::Tensor& slice : model.parameters())
    if (slice.grad().defined()) gradients.emplace_back(slice, std::exchange(slice.mutable_grad(), {}));
  memory = engine.step_memory();
  trained = trainable(engine);
}

// See Note [Gradient shards]: a gradient that the program keeps is never written again.
void CapturedStep::State::part_from_kept() {
  std::map<c10::StorageImpl*, std::vector<at::Tensor*>> recorded;
  for (auto& [slice, gradient] : gradients)
    recorded[gradient.storage().unsafeGetStorageImpl()].push_back(&gradient);
  for (const auto& [storage, tensors] : recorded) {
    const bool kept = tensors.front()->storage().use_count() > tensors.size() ||
                      std::any_of(tensors.begin(), tensors.end(),
                                  [](const at::Tensor* one) { return one->use_count() > 1; });
    if (!kept) continue;
    const c10::Storage ours = move_out(*storage, tensors.front()->options());
    for (at::Tensor* one : tensors) *one = over(ours, *one);
  }
}

at::Tensor CapturedStep::State::replay(const std::vector<at::Tensor>& given) {
  current(model.engine()).quiesce();
  const at::NoGradGuard no_grad;
  part_from_kept();
  for (size_t i = 0; i < given.size(); ++i) inputs[i].copy_(given[i], /*non_blocking=*/true);
  graph->replay();
  for (auto& [slice, gradient] : gradients) slice.mutable_grad() = gradient;
  ++replays;
  return loss.clone();
}

CapturedStep::CapturedStep(ShardedModel model) : state_(std::make_unique<State>(std::move(model))) {
  const Engine& engine = current(state_->model.engine());
  const c10::Device device = engine.world.device();
  if (engine.mesh.all.size() != 1 || make_device_graph(device) == nullptr) return;
  if (engine.host) {
    TORCH_WARN(
        "fsdp: capture() of a model with Offload: its steps wait for host memory, which a graph cannot, and "
        "run as usual");
    return;
  }
  state_->stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}
CapturedStep::~CapturedStep() = default;
CapturedStep::CapturedStep(CapturedStep&&) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&&) noexcept = default;

int64_t CapturedStep::replays() const { return state_->replays; }

at::Tensor CapturedStep::run(const std::vector<at::Tensor>& inputs, const Forward& forward) {
  State& state = *state_;
  if (!state.stream) return state.run_usual(inputs, forward);
  const Aside aside(*state.stream);
  if (!std::exchange(state.moved, true)) current(state.model.engine()).make_accumulators_anew();
  if (state.usual(inputs) || state.steps++ < kUsual) return state.run_usual(inputs, forward);
  if (!state.graph) {
    try {
      state.record(inputs, forward);
    } catch (const std::exception& error) {
      state.possible = false;
      state.graph = nullptr;
      state.model.zero_grad();
      const auto* known = dynamic_cast<const c10::Error*>(&error);
      TORCH_WARN("fsdp: this step cannot be captured and runs as usual from now on: ",
                 known != nullptr ? known->what_without_backtrace() : error.what());
      return state.run_usual(inputs, forward);
    }
  }
  return state.replay(inputs);
}

}  // namespace fsdp::detail
