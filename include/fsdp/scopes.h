// What lasts while an object lives: a unit stays gathered, gradients stay here, parameters are whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace fsdp {

namespace detail {
class Engine;
struct Unit;
}  // namespace detail

// While it lives, the unit of `tensor`, a sharded parameter or a view of one, stays gathered: for kernels
// that take data_ptr(). Only inside a call of the model or a backward, else it throws c10::Error; other
// tensors pass. Waits for the all-gather as an operator does.
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

struct NoSyncOptions {
  std::string module = {};  // path: only the units that hold parameters of this module; empty: all
  // Hybrid strategies: gradients are reduced in the row by every backward, and not over the rows. All units.
  bool rows_only = false;
};

// While it lives, gradients stay on this rank, unsharded, or in its row. They are reduced by the first
// backward after the scope ends. To drop them instead, call the model's zero_grad(): the optimizer's does not
// know of them. Scopes may overlap.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<detail::Engine> engine, NoSyncOptions options = {});
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<detail::Engine> engine_;
  NoSyncOptions options_;
};

// While it lives, units stay gathered after a backward and after a call without gradients, for the next
// microbatch, which then gathers nothing. It takes the memory of all units. Parameters must not be written
// inside it: that throws c10::Error. All ranks open and end it alike.
class [[nodiscard]] KeepGathered {
 public:
  explicit KeepGathered(std::shared_ptr<detail::Engine> engine);
  ~KeepGathered();
  KeepGathered(const KeepGathered&) = delete;
  KeepGathered& operator=(const KeepGathered&) = delete;

 private:
  std::shared_ptr<detail::Engine> engine_;
};

struct FullParamsOptions {
  // On close, write changes back to the shards; each rank takes its own part.
  bool write_back = false;
  bool rank0_only = false;  // other ranks send their shards and cannot read; not with write_back
  bool offload = false;     // in host memory
  std::string module = {};  // path: only the units that hold parameters of this module; empty: all
  // false: only the units that hold a parameter of `module` itself, not of modules inside it. What else these
  // units hold is readable too.
  bool recurse = true;
  // The parameters' .grad() are the whole reduced gradients, undefined where no rank has one. With
  // write_back they are written back too.
  bool gradients = false;
};

// While it lives, the module's parameters are unsharded, in the shard's dtype, in memory of their own. Scopes
// may nest. Collective, outside of calls and backwards: else c10::Error.
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

}  // namespace fsdp
