// fully_shard() for TorchScript models, for example ones that PyTorch wrote.
#pragma once

#include <fsdp/sharded.h>
#include <torch/csrc/jit/api/module.h>

#include <utility>
#include <vector>

namespace fsdp {

namespace detail {

template <>
struct Caster<c10::IValue> {
  static constexpr bool kCasts = true;
  template <class Fn>
  static void each(const c10::IValue& value, Fn fn) {
    if (value.isTensor()) fn(value.toTensor());
  }
  static c10::IValue apply(const InputCast& cast, const c10::IValue& value) {
    return value.isTensor() ? c10::IValue(cast_floating(value.toTensor(), cast.to)) : value;
  }
};

// A module whose parameters, buffers and children are those of the script, under the same names.
std::shared_ptr<torch::nn::Module> mirror_script(const torch::jit::Module& script);
// A method of the script, as it is written: a compiler would hide the parameters an operator reads.
c10::IValue run_script(torch::jit::Module& script, const std::string& method,
                       std::vector<c10::IValue> inputs);

}  // namespace detail

// The handle of a sharded TorchScript model. Units and parameters have the names of the script's submodules.
template <>
class Sharded<torch::jit::Module> : public ShardedModel {
 public:
  Sharded(std::shared_ptr<detail::Engine> engine, torch::jit::Module module)
      : ShardedModel(std::move(engine)), module_(std::move(module)) {}

  torch::jit::Module& module() { return module_; }

  // forward(args...), with parameters gathered as they are used.
  template <class... Args>
  c10::IValue operator()(const Args&... args) {
    return run_method("forward", args...);
  }

  template <class... Args>
  c10::IValue run_method(const std::string& method, const Args&... args) {
    return detail::call(
        *engine_,
        [&](const detail::InputCast& cast) {
          return detail::run_script(module_, method, {c10::IValue(detail::cast_argument(cast, args))...});
        },
        detail::fingerprint(args...));
  }

 private:
  torch::jit::Module module_;
};

// As for a torch::nn model. Wrap policies see the script's submodules, by path and by the name of their
// class; by_type<M>() knows none of them. A frozen script has no parameters left and is refused.
[[nodiscard]] Sharded<torch::jit::Module> fully_shard(const World& world, const torch::jit::Module& module,
                                                      const ShardOptions& options = {});

}  // namespace fsdp
