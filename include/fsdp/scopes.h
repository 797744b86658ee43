// RAII scopes: use(), no_sync(), keep_gathered() and full_params(). They can be moved, for example into a
// std::optional; a moved-from scope ends nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace fsdp {

namespace detail {
class Engine;
struct Unit;
}  // namespace detail

// Keeps the unit of `tensor`, a sharded parameter or a view of one, gathered while the scope lives: for
// kernels that take data_ptr(). Outside a call of the model or a backward it throws c10::Error; other tensors
// pass. Waits for the all-gather, as an operator does.
class [[nodiscard]] Use {
 public:
  explicit Use(const at::Tensor& tensor);
  Use(Use&& other) noexcept = default;
  Use& operator=(Use&& other) noexcept;
  ~Use();

 private:
  std::shared_ptr<detail::Unit> unit_;
};
inline Use use(const at::Tensor& tensor) { return Use(tensor); }

struct NoSyncOptions {
  std::string module = {};  // path: only the units that hold parameters of this module; empty: all
  // Hybrid strategies: every backward reduces gradients in the row, but not over the rows. For all units.
  bool rows_only = false;
};

// While the scope lives, gradients stay on this rank, unsharded; with rows_only they are reduced within the
// row. The first backward after the scope ends reduces them. To drop them instead, call the model's
// zero_grad(); the optimizer's does not reach them. Scopes may overlap.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<detail::Engine> engine, const NoSyncOptions& options = {});
  NoSync(NoSync&& other) noexcept = default;
  NoSync& operator=(NoSync&& other) noexcept;
  ~NoSync();

 private:
  std::shared_ptr<detail::Engine> engine_;  // null: moved from
  int scope_ = 0;
};

struct KeepGatheredOptions {
  std::string module = {};  // path: only the units that hold parameters of this module; empty: all
};

// While the scope lives, units stay gathered after a backward and after a call without gradients, so that the
// next microbatch gathers nothing. This takes the memory of these units. Writing a parameter of the model
// inside the scope throws c10::Error. Scopes may overlap. All ranks open and end them at the same points.
class [[nodiscard]] KeepGathered {
 public:
  explicit KeepGathered(std::shared_ptr<detail::Engine> engine, const KeepGatheredOptions& options = {});
  KeepGathered(KeepGathered&& other) noexcept = default;
  KeepGathered& operator=(KeepGathered&& other) noexcept;
  ~KeepGathered();

 private:
  std::shared_ptr<detail::Engine> engine_;  // null: moved from
  int scope_ = 0;
};

struct FullParamsOptions {
  // On close, write changes back to the shards; each rank takes its own part.
  bool write_back = false;
  bool rank0_only = false;  // other ranks send their shards and cannot read; not with write_back
  bool offload = false;     // whole parameters lie in host memory
  std::string module = {};  // path: only the units that hold parameters of this module; empty: all
  // false: only the units that hold a parameter of `module` itself, not of modules inside it. Other
  // parameters of these units are readable too.
  bool recurse = true;
  // The parameters' .grad() are the whole reduced gradients, undefined if no rank has one. With write_back
  // they are written back too.
  bool gradients = false;
};

// While the scope lives, the module's parameters are unsharded, in the shard's dtype, in memory of their own.
// Scopes may nest. Collective, outside of calls and backwards: else throws c10::Error.
class [[nodiscard]] FullParams {
 public:
  FullParams(std::shared_ptr<detail::Engine> engine, const FullParamsOptions& options);
  FullParams(FullParams&& other) noexcept = default;
  FullParams& operator=(FullParams&& other) noexcept;
  ~FullParams();

 private:
  std::shared_ptr<detail::Engine> engine_;  // null: moved from
  int scope_ = 0;
};

}  // namespace fsdp
