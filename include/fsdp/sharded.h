// fully_shard(): a model whose parameters, gradients and optimizer state are split over the ranks of a World.
#pragma once

#include <fsdp/detail/arguments.h>
#include <fsdp/sharded_model.h>
#include <fsdp/world.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace fsdp {

template <class M>
class Sharded : public ShardedModel {
 public:
  Sharded(std::shared_ptr<detail::Engine> engine, std::shared_ptr<M> module)
      : ShardedModel(std::move(engine)), module_(std::move(module)) {}

  M& module() const { return *module_; }
  const std::shared_ptr<M>& ptr() const { return module_; }

  // module->forward(args...), with parameters gathered as they are used. Tensors among the arguments are
  // moved to the model's device and cast; see docs/sharding.md, "Arguments".
  template <class... Args>
  auto operator()(Args&&... args) {
    return detail::call(
        *engine_,
        [&](const detail::InputCast& cast) {
          return detail::call_forward(*module_, cast, std::forward<Args>(args)...);
        },
        detail::fingerprint(args...));
  }

  // fn(module), for methods other than forward.
  template <class Fn>
  auto run(Fn&& fn) {
    return detail::call(*engine_, [&](const detail::InputCast&) { return std::forward<Fn>(fn)(*module_); },
                        {});
  }

 private:
  std::shared_ptr<M> module_;
};

// An AnyModule is asked for Tensor results.
template <>
class Sharded<torch::nn::AnyModule> : public ShardedModel {
 public:
  Sharded(std::shared_ptr<detail::Engine> engine, torch::nn::AnyModule module)
      : ShardedModel(std::move(engine)), module_(std::move(module)) {}

  torch::nn::AnyModule& module() { return module_; }

  template <class... Args>
  at::Tensor operator()(Args&&... args) {
    return detail::call(
        *engine_,
        [&](const detail::InputCast& cast) {
          return module_.forward<at::Tensor>(detail::cast_argument(cast, std::forward<Args>(args))...);
        },
        detail::fingerprint(args...));
  }

 private:
  torch::nn::AnyModule module_;
};

namespace detail {
std::shared_ptr<Engine> shard_module(const World& world, torch::nn::Module& module,
                                     const ShardOptions& options);
}

// Splits the parameters of `module` over the ranks of `world`, in place, and returns the handle to train it
// with. The module is moved to world.device() first. Collective. A module inside that was given to
// fully_shard before keeps its units and options and becomes part of the new model; keep its handle until
// then.
//
// Throws c10::Error when the module cannot be sharded: a parameter that another tensor is a view of, a type
// that cannot be communicated, an unknown ignored path; and on every rank when ranks have different models or
// options, with the rank and the first difference.
template <class M>
requires std::is_base_of_v<torch::nn::Module, M> Sharded<M> fully_shard(const World& world,
                                                                        std::shared_ptr<M> module,
                                                                        const ShardOptions& options = {}) {
  auto engine = detail::shard_module(world, *module, options);
  return Sharded<M>(std::move(engine), std::move(module));
}

template <class M>
[[nodiscard]] Sharded<M> fully_shard(const World& world, const torch::nn::ModuleHolder<M>& holder,
                                     const ShardOptions& options = {}) {
  return fully_shard(world, holder.ptr(), options);
}

[[nodiscard]] inline Sharded<torch::nn::AnyModule> fully_shard(const World& world,
                                                               torch::nn::AnyModule module,
                                                               const ShardOptions& options = {}) {
  auto engine = detail::shard_module(world, *module.ptr(), options);
  return Sharded<torch::nn::AnyModule>(std::move(engine), std::move(module));
}

}  // namespace fsdp
