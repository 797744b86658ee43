// ShardedModel: the handle of a sharded model, whatever its module's type.
#pragma once

#include <fsdp/insight.h>
#include <fsdp/options.h>
#include <fsdp/scopes.h>
#include <torch/ordered_dict.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace fsdp {

struct OptimizerFormat;
namespace detail {
class Engine;
}  // namespace detail

enum class BufferSync : uint8_t {
  broadcast,  // all buffers become rank 0's
  average,    // floating-point buffers are averaged over the ranks; others become rank 0's
};

// A handle; copies share the model. Threads: one at a time. Every rank makes the same calls in the same
// order. Calls throw CommError if a rank fails, and c10::Error for misuse. They run on the current stream.
class ShardedModel {
 public:
  explicit ShardedModel(std::shared_ptr<detail::Engine> engine);

  // Tensors for optimizers: this rank's slice of each parameter, 1-D and maybe empty, the same tensors every
  // time. After backward, .grad() is the slice of the reduced gradient, undefined if no rank used it.
  std::vector<at::Tensor> parameters() const;
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  // This rank's flat shards, padding included: one per unit, dtype, and trainable or frozen.
  std::vector<at::Tensor> flat_parameters() const;

  // Scales gradients so that their norm over all ranks is at most `max_norm`. Returns the norm before, a
  // scalar on the device: fp64 if a parameter is, else fp32. norm_type: 2, infinity, or any p > 0.
  // Collective.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0);
  // The same norm; changes nothing. Collective.
  at::Tensor get_total_norm(double norm_type = 2.0);
  // Clamps every gradient element to [-clip_value, clip_value]. Local; not for complex gradients.
  void clip_grad_value_(double clip_value);
  // The p-norm of every unsharded parameter, and of its gradient: [parameters], fp64, in the order of
  // parameters(), on the device; 0 if there is no gradient. p: 2, infinity, or any p > 0. For optimizers that
  // scale by layer (LARS, LAMB). Collective.
  at::Tensor parameter_norms(double p = 2.0) const;
  at::Tensor gradient_norms(double p = 2.0) const;
  // Also drops the gradients that no_sync() kept back.
  void zero_grad();
  // Calls `done` in every backward for each parameter after its last use in that backward, with its reduced
  // gradient in slice.grad(): `done` may update the slice and drop the gradient. From the second step on, the
  // call comes while backward still runs if all parameters of the unit are used; one that no rank used this
  // time has a zero gradient then. All ranks set the same function; an empty one removes it.
  void on_gradient(std::function<void(const std::string& name, at::Tensor& slice)> done);

  // Scopes: see NoSync, KeepGathered and FullParams.
  NoSync no_sync(const NoSyncOptions& options = {});
  KeepGathered keep_gathered(const KeepGatheredOptions& options = {});
  FullParams full_params(const FullParamsOptions& options);
  FullParams full_params(bool write_back = false);
  // Reduces the gradients that no_sync() kept back, without a backward: after the last microbatch of a step,
  // or before an optimizer step that comes early. Throws c10::Error inside no_sync(). Collective.
  void synchronize_gradients();

  // Starts to gather the units that hold parameters of the module at `path` (empty: all), before or inside a
  // call of the model, so the next reader waits less. They are released as usual after that use, by
  // reshard(), or at the end of the call or the backward. Returns at once. Collective.
  void unshard(const std::string& path = {});
  // Reshards these units; the next reader gathers them again. Units that an operator reads stay gathered.
  void reshard(const std::string& path = {});

  MemoryStats memory_stats() const;
  // Counts the optimizer's state too, except in the peaks. `format`: for an optimizer that is neither
  // LibTorch's nor ours, as in RunState.
  MemoryStats memory_stats(const torch::optim::Optimizer& optimizer,
                           const OptimizerFormat* format = nullptr) const;
  void reset_peak_memory();
  // Samples memory at every change of unit from the next training step on; see memory_timeline(). Takes time.
  void record_memory(bool on);
  // The samples of the last complete training step; empty if none was recorded.
  std::vector<MemorySample> memory_timeline() const;
  std::vector<OpStats> comm_stats() const;
  std::vector<UnitCounts> unit_counts() const;
  std::vector<UnitPhase> unit_phases() const;  // in the order of unit_counts()
  // Calls `listener` at every change of a unit's phase, on the thread that runs the operator; in backward
  // that may be autograd's. It must not call the model. An empty function removes the listener.
  void on_transition(std::function<void(const UnitTransition&)> listener);
  TrainingState training_state() const;
  int64_t num_parameters() const;                               // elements; tied parameters count once
  double local_sharding_ratio() const;                          // the fraction of them on this rank
  ParameterInfo parameter_info(const std::string& name) const;  // unknown name: throws, with near names
  std::string describe() const;                                 // units, sizes, dtypes and shards as text
  // Reproducible mode only: a hash of the trainable parameters, the same on any number of ranks. Collective.
  uint64_t state_hash() const;
  // Reproducible mode only: number of steps so far. Set it after loading a state saved by other means.
  int64_t step() const;
  void set_step(int64_t step);
  // The last error inside this model, even if the caller did not see it; null: none.
  std::exception_ptr last_error() const;

  // Makes the module's buffers the same on all ranks. fully_shard() does so once; after that BatchNorm's
  // running statistics, for example, are each rank's own. Collective.
  void sync_buffers(BufferSync how = BufferSync::broadcast);

  // As torch::nn::Module::to(). A sharded model is neither moved nor converted: throws c10::Error with what
  // to do instead, unless it is on that device and its floating-point shards have that dtype.
  void to(c10::Device device, bool non_blocking = false) const;
  void to(at::ScalarType dtype, bool non_blocking = false) const;
  void to(c10::Device device, at::ScalarType dtype, bool non_blocking = false) const;

  // The module's training mode.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const;

  const std::shared_ptr<detail::Engine>& engine() const { return engine_; }

 protected:
  std::shared_ptr<detail::Engine> engine_;
};

}  // namespace fsdp
