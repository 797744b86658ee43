// fully_shard() for TorchScript models, for example models saved by PyTorch.
#pragma once

#include <fsdp/sharded.h>
#include <torch/csrc/jit/api/module.h>

#include <utility>
#include <vector>

namespace fsdp {

namespace detail {

// Returns `value` with its tensors moved and floating-point ones cast, also inside lists, tuples and dicts.
c10::IValue cast_inside(const InputCast& cast, const c10::IValue& value);

template <>
struct Caster<c10::IValue> {
  static constexpr bool kCasts = true;
  template <class Fn>
  static void each(const c10::IValue& value, Fn fn) {
    value.visit([&](const c10::IValue& inner) {
      if (inner.isTensor()) fn(inner.toTensor());
      return false;
    });
  }
  static c10::IValue apply(const InputCast& cast, const c10::IValue& value) {
    return cast_inside(cast, value);
  }
};

// A module with the script's own parameters, buffers and children, under the same names.
std::shared_ptr<torch::nn::Module> mirror_script(const torch::jit::Module& script);
// Calls a method of the script. See Note [Scripts as they are written].
c10::IValue run_script(Engine& engine, const torch::jit::Module& script, const std::string& method,
                       std::vector<c10::IValue> inputs);

}  // namespace detail

// The handle of a sharded TorchScript model. Units and parameters have the script's names.
template <>
class Sharded<torch::jit::Module> : public ShardedModel {
 public:
  Sharded(std::shared_ptr<detail::Engine> engine, torch::jit::Module module)
      : ShardedModel(std::move(engine)), module_(std::move(module)) {}

  torch::jit::Module& module() { return module_; }

  // Calls forward(args...); units are gathered as operators read them. Arguments are moved and cast as for
  // torch::nn models. Functions started by fork() run at once, in the order of the script. Errors of this
  // library keep their type.
  template <class... Args>
  c10::IValue operator()(const Args&... args) {
    return run_method("forward", args...);
  }

  // The same for another method.
  template <class... Args>
  c10::IValue run_method(const std::string& method, const Args&... args) {
    return detail::call(
        *engine_,
        [&](const detail::InputCast& cast) {
          return detail::run_script(*engine_, module_, method,
                                    {detail::cast_argument(cast, c10::IValue(args))...});
        },
        detail::fingerprint(c10::IValue(args)...));
  }

 private:
  torch::jit::Module module_;
};

// As fully_shard() for a torch::nn model. Wrap policies see the script's submodules by path and class name;
// by_type<M>() matches none of them. Throws c10::Error for a frozen script, which has no parameters left.
[[nodiscard]] Sharded<torch::jit::Module> fully_shard(const World& world, const torch::jit::Module& module,
                                                      const ShardOptions& options = {});

}  // namespace fsdp
