// What every sharded model offers, whatever its module's type.
#pragma once

#include <fsdp/insight.h>
#include <fsdp/options.h>
#include <torch/ordered_dict.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

namespace detail {
class Engine;
struct Unit;
}  // namespace detail

enum class BufferSync : uint8_t {
  broadcast,  // all become rank 0's
  average,    // floating ones the average over the ranks; others rank 0's
};

// While it lives, a parameter of a sharded model (or a view of one) is gathered and stays where it is: for
// kernels that take data_ptr(). Only inside a call of the model or a backward; other tensors pass.
class [[nodiscard]] Use {
 public:
  explicit Use(const at::Tensor& tensor);
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  std::shared_ptr<detail::Unit> unit_;
};
inline Use use(const at::Tensor& tensor) { return Use(tensor); }

// While it lives, gradients stay whole on this rank and are not reduced. They are with the first backward
// after it. To drop them instead call the model's zero_grad(); an optimizer does not know of them.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<detail::Engine> engine);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<detail::Engine> engine_;
};

struct FullParamsOptions {
  // What was written to the parameters goes into the shards at the end; each rank's own part counts.
  bool write_back = false;
  bool rank0_only = false;  // other ranks send their shards and have nothing to read; not with write_back
  bool offload = false;     // in host memory
  std::string module = {};  // path: only the units that hold parameters of this module; empty: all
};

// While it lives, the module's parameters are whole and in full precision, in memory of their own. Scopes
// may lie inside each other. Collective.
class [[nodiscard]] FullParams {
 public:
  FullParams(std::shared_ptr<detail::Engine> engine, const FullParamsOptions& options);
  ~FullParams();
  FullParams(const FullParams&) = delete;
  FullParams& operator=(const FullParams&) = delete;

 private:
  std::shared_ptr<detail::Engine> engine_;
  int scope_;
};

// A handle; copies share the model. Threads: one at a time. Collective: every rank makes the same calls in
// the same order.
class ShardedModel {
 public:
  explicit ShardedModel(std::shared_ptr<detail::Engine> engine);

  // What optimizers take: per parameter, this rank's slice of it [elements, 1-D, maybe none], the same
  // tensors every time; after backward, .grad() is the slice of the reduced gradient.
  std::vector<at::Tensor> parameters() const;
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  // This rank's shard of every unit, padding included.
  std::vector<at::Tensor> flat_parameters() const;

  // Scales gradients so that their norm over all ranks is at most `max_norm`; returns the norm before, a
  // scalar on the device. norm_type: 2, infinity, or any p > 0. Collective.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0);
  void clip_grad_value_(double clip_value);
  // The p-norm of every whole parameter, and of its gradient, over all ranks: [parameters], fp64, in the
  // order of parameters(), on the device; 0 where there is no gradient. p: 2, infinity, or any p > 0. For
  // optimizers that scale by layer (LARS, LAMB). One collective each.
  at::Tensor parameter_norms(double p = 2.0) const;
  at::Tensor gradient_norms(double p = 2.0) const;
  void zero_grad();

  NoSync no_sync();
  FullParams full_params(const FullParamsOptions& options);
  FullParams full_params(bool write_back = false);

  MemoryStats memory_stats() const;
  std::vector<OpStats> comm_stats() const;
  std::vector<UnitCounts> unit_counts() const;
  TrainingState training_state() const;
  int64_t num_parameters() const;                               // elements, tied ones once
  double local_sharding_ratio() const;                          // of them, on this rank
  ParameterInfo parameter_info(const std::string& name) const;  // throws, with near names, for an unknown one
  std::string describe() const;                                 // units, sizes, types and shards as a tree
  // Of the trainable parameters' values, the same on any number of ranks; in reproducible mode. Collective.
  uint64_t state_hash() const;
  // Steps done so far in reproducible mode; set it after loading a checkpoint.
  int64_t step() const;
  void set_step(int64_t step);
  // The last error this model met, also where the caller did not see it; null: none.
  std::exception_ptr last_error() const;

  // Makes the module's buffers the same on all ranks. Sharding does so at the start only; BatchNorm's running
  // statistics, for example, are then each rank's own. Collective.
  void sync_buffers(BufferSync how = BufferSync::broadcast);

  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const;

  const std::shared_ptr<detail::Engine>& engine() const { return engine_; }

 protected:
  std::shared_ptr<detail::Engine> engine_;
};

}  // namespace fsdp
