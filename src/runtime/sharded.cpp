// The public handle of a sharded model.
#include <fsdp/error.h>
#include <fsdp/sharded.h>

#include <memory>

#include "launch/in_call.h"
#include "runtime/engine.h"

namespace fsdp {

using detail::current;

namespace detail {

namespace {

// A meta tensor has no memory to move.
bool moves(const InputCast& cast, const at::Tensor& tensor) {
  return cast.device && !tensor.is_meta() && tensor.device() != *cast.device;
}

bool casts(const InputCast& cast, const at::Tensor& tensor) {
  return cast.to && tensor.is_floating_point() && tensor.scalar_type() != *cast.to;
}

}  // namespace

bool changes(const InputCast& cast, const at::Tensor& tensor) {
  return tensor.defined() && (moves(cast, tensor) || casts(cast, tensor));
}

at::Tensor cast_tensor(const InputCast& cast, const at::Tensor& tensor) {
  if (!changes(cast, tensor)) return tensor;
  return tensor.to(moves(cast, tensor) ? *cast.device : tensor.device(),
                   casts(cast, tensor) ? *cast.to : tensor.scalar_type());
}

Entry::Entry(Engine& engine, const std::vector<at::Tensor>& arguments)
    : engine_(current(engine.shared_from_this())) {
  const Precision& precision = engine_.options.precision;
  if (precision.cast_inputs) input_.to = precision.param;
  input_.device = engine_.world.device();
  output_.to = precision.output;
  engine_.enter(arguments);
}

void Entry::failed(std::exception& error) { engine_.fail_call(error); }

Entry::~Entry() {
  try {
    engine_.leave();
  } catch (...) {
    engine_.fail(std::current_exception());  // the group has failed: its next call throws the same error
  }
}

}  // namespace detail

namespace {

// The end of a scope must not throw: the model keeps the error, and its next call throws it.
template <class Fn>
void end_scope(std::shared_ptr<detail::Engine>& engine, Fn end) {
  if (!engine) return;
  detail::Engine& model = current(engine);
  try {
    end(model);
  } catch (...) {
    model.fail(std::current_exception());
  }
  engine.reset();
}

// Ends the scope of `mine`, which then takes over that of `other`.
template <class Scope>
void move_scope(Scope& mine, Scope& other) {
  if (&mine == &other) return;
  std::destroy_at(&mine);
  std::construct_at(&mine, std::move(other));
}

}  // namespace

NoSync::NoSync(std::shared_ptr<detail::Engine> engine, const NoSyncOptions& options)
    : engine_(std::move(engine)), scope_(current(engine_).begin_no_sync(options)) {}
NoSync::~NoSync() {
  end_scope(engine_, [&](detail::Engine& model) { model.end_no_sync(scope_); });
}
NoSync& NoSync::operator=(NoSync&& other) noexcept { return move_scope(*this, other), *this; }

KeepGathered::KeepGathered(std::shared_ptr<detail::Engine> engine, const KeepGatheredOptions& options)
    : engine_(std::move(engine)), scope_(current(engine_).begin_keep_gathered(options)) {}
KeepGathered::~KeepGathered() {
  end_scope(engine_, [&](detail::Engine& model) { model.end_keep_gathered(scope_); });
}
KeepGathered& KeepGathered::operator=(KeepGathered&& other) noexcept {
  return move_scope(*this, other), *this;
}

FullParams::FullParams(std::shared_ptr<detail::Engine> engine, const FullParamsOptions& options)
    : engine_(std::move(engine)), scope_(current(engine_).open_full_params(options)) {}
FullParams::~FullParams() {
  end_scope(engine_, [&](detail::Engine& model) { model.close_full_params(scope_); });
}
FullParams& FullParams::operator=(FullParams&& other) noexcept { return move_scope(*this, other), *this; }

ShardedModel::ShardedModel(std::shared_ptr<detail::Engine> engine) : engine_(std::move(engine)) {}

std::vector<at::Tensor> ShardedModel::parameters() const {
  std::vector<at::Tensor> slices;
  for (const auto* param : current(engine_).params) slices.push_back(param->slice);
  return slices;
}

torch::OrderedDict<std::string, at::Tensor> ShardedModel::named_parameters() const {
  torch::OrderedDict<std::string, at::Tensor> slices("parameter");
  for (const auto* param : current(engine_).params) slices.insert(param->names.front(), param->slice);
  return slices;
}

std::vector<at::Tensor> ShardedModel::flat_parameters() const {
  std::vector<at::Tensor> shards;
  for (const auto& unit : current(engine_).units)
    for (const auto& region : unit->regions) shards.push_back(region->shard);
  return shards;
}

void ShardedModel::zero_grad() {
  for (auto& slice : parameters()) slice.mutable_grad() = at::Tensor();
  current(engine_).forget_gradients();
}

void ShardedModel::unshard(const std::string& path) { current(engine_).unshard(path); }
void ShardedModel::reshard(const std::string& path) { current(engine_).reshard(path); }

NoSync ShardedModel::no_sync(const NoSyncOptions& options) { return NoSync(engine_, options); }
KeepGathered ShardedModel::keep_gathered(const KeepGatheredOptions& options) {
  return KeepGathered(engine_, options);
}
void ShardedModel::synchronize_gradients() { current(engine_).synchronize_gradients(); }
void ShardedModel::on_gradient(std::function<void(const std::string&, at::Tensor&)> done) {
  current(engine_).set_on_gradient(std::move(done));
}
FullParams ShardedModel::full_params(const FullParamsOptions& options) {
  return FullParams(engine_, options);
}
FullParams ShardedModel::full_params(bool write_back) {
  return FullParams(engine_, FullParamsOptions{.write_back = write_back});
}

namespace {

detail::StepMode& mode_of(const std::shared_ptr<detail::Engine>& engine) {
  TORCH_CHECK(current(engine).mode,
              "fsdp: only a model in reproducible mode knows its step and hash; set "
              "ShardOptions::reproducible");
  return *current(engine).mode;
}

}  // namespace

int64_t ShardedModel::step() const { return mode_of(engine_).step; }
void ShardedModel::set_step(int64_t step) { mode_of(engine_).step = step; }
uint64_t ShardedModel::state_hash() const {
  detail::Engine& engine = current(engine_);
  const detail::InCall call(engine.world, "state_hash()");
  return mode_of(engine_).hash(engine.units, engine.mesh);
}

void ShardedModel::reset_peak_memory() { current(engine_).reset_peak_memory(); }
void ShardedModel::record_memory(bool on) { current(engine_).memory().record(on); }
std::vector<MemorySample> ShardedModel::memory_timeline() const {
  return current(engine_).memory().timeline();
}

void ShardedModel::on_transition(std::function<void(const UnitTransition&)> listener) {
  current(engine_).phases().listen(std::move(listener));
}

std::vector<OpStats> ShardedModel::comm_stats() const { return current(engine_).mesh.stats(); }
TrainingState ShardedModel::training_state() const { return current(engine_).training_state(); }
std::exception_ptr ShardedModel::last_error() const { return current(engine_).last_error(); }

void ShardedModel::to(c10::Device device, bool /*non_blocking*/) const {
  const c10::Device here = current(engine_).world.device();
  const bool same = device.type() == here.type() && (!device.has_index() || device.index() == here.index());
  TORCH_CHECK(same || (device.is_cpu() && here.is_cpu()), "fsdp: to(", device, "): the model is sharded on ",
              here,
              " and cannot be moved. Set InitOptions::device, or pass another World to fully_shard(); for "
              "whole parameters in host memory use full_params() with FullParamsOptions::offload.");
}

void ShardedModel::to(at::ScalarType dtype, bool /*non_blocking*/) const {
  for (const auto* param : current(engine_).params) {
    const at::ScalarType kept = param->region().master();
    TORCH_CHECK(!c10::isFloatingType(kept) || kept == dtype, "fsdp: to(", dtype,
                "): the shard of parameter '", param->names.front(), "' is ", kept,
                " and cannot be converted. To compute in another dtype, set ShardOptions::precision, for "
                "example fsdp::bf16(); to keep shards and optimizer state in it, set Precision::master or "
                "convert the module before fully_shard().");
  }
}

void ShardedModel::to(c10::Device device, at::ScalarType dtype, bool non_blocking) const {
  to(device, non_blocking);
  to(dtype, non_blocking);
}

void ShardedModel::train(bool on) { current(engine_).module.train(on); }
bool ShardedModel::is_training() const { return current(engine_).module.is_training(); }

}  // namespace fsdp
