// fully_shard(): shards the parameters, gradients and optimizer state of a model over the ranks of a World.
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

// The handle of a sharded module of type M. Copies share the model and the module. See ShardedModel.
template <class M>
class Sharded : public ShardedModel {
 public:
  Sharded(std::shared_ptr<detail::Engine> engine, std::shared_ptr<M> module)
      : ShardedModel(std::move(engine)), module_(std::move(module)) {}

  M& module() const { return *module_; }
  const std::shared_ptr<M>& ptr() const { return module_; }

  // Calls module->forward(args...); units are gathered as operators read them. Tensors among the arguments
  // are moved to the model's device and cast: see docs/sharding.md, "Arguments". Collective. Throws what
  // forward throws, CommError if a rank fails, and c10::Error for misuse.
  template <class... Args>
  auto operator()(Args&&... args) {
    return detail::call(
        *engine_,
        [&](const detail::InputCast& cast) {
          return detail::call_forward(*module_, cast, std::forward<Args>(args)...);
        },
        detail::fingerprint(args...));
  }

  // Calls fn(module), for methods other than forward. Tensors that fn captures are not cast; its result is
  // cast to precision.output.
  template <class Fn>
  auto run(Fn&& fn) {
    return detail::call(*engine_, [&](const detail::InputCast&) { return std::forward<Fn>(fn)(*module_); },
                        {});
  }

 private:
  std::shared_ptr<M> module_;
};

// The handle of a sharded AnyModule, whose forward must return a Tensor.
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

// Shards `module` over the ranks of `world`, in place, on world.device(), and returns the handle to train it
// with. The handle shares ownership of the module. Collective. A submodule that was sharded before keeps its
// units and options and becomes part of the new model; keep its handle until then.
//
// Throws c10::Error if the module cannot be sharded: a parameter that another tensor is a view of, a dtype
// that cannot be communicated, an unknown ignored path. Throws on every rank if ranks have different models
// or options, with the rank and the first difference.
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
