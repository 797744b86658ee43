// Activation checkpointing: recompute() computes activations again in backward instead of keeping them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class SequentialImpl;
}

namespace fsdp {

struct RecomputeOptions {
  bool keep_rng = true;         // the second run draws the same random numbers as the first
  bool offload_inputs = false;  // kept inputs wait in host memory until backward
};

namespace detail {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
std::vector<at::Tensor> recompute(TensorFunction fn, const std::vector<at::Tensor>& inputs,
                                  const RecomputeOptions& options);

inline std::vector<at::Tensor> to_list(at::Tensor value) { return {std::move(value)}; }
inline std::vector<at::Tensor> to_list(std::vector<at::Tensor> values) { return values; }
template <class... Tensors>
std::vector<at::Tensor> to_list(const std::tuple<Tensors...>& values) {
  return std::apply([](const auto&... all) { return std::vector<at::Tensor>{all...}; }, values);
}

template <class Result>
Result from_list(std::vector<at::Tensor> values) {
  if constexpr (std::is_same_v<Result, std::vector<at::Tensor>>)
    return values;
  else if constexpr (std::is_same_v<Result, at::Tensor>)
    return std::move(values.front());
  else
    return [&]<size_t... I>(std::index_sequence<I...>) { return Result{std::move(values[I])...}; }
  (std::make_index_sequence<std::tuple_size_v<Result>>());
}

}  // namespace detail

// Returns fn(inputs...): a tensor, or a std::vector or std::tuple of tensors. Keeps only the inputs, which
// may be undefined; backward runs `fn` again for the activations it needs, with the same random numbers
// (options.keep_rng; also of generators passed to operators) and the same autocast state. Gradients have the
// bits of the plain call if `fn` is deterministic and reads each parameter once. Buffers that `fn` writes,
// such as running statistics, keep the values that the first run wrote. Works for modules, sharded or not;
// calls may be nested. If no result needs gradients, this is a plain call.
//
// `fn` is copied and called from backward: references it captures must stay valid until then. It must compute
// the same from the same inputs. Throws c10::Error if `fn` captured a tensor that needs gradients and is no
// parameter, or if it wrote to an input. Backward throws c10::Error if a parameter of `fn` was written since
// forward, and for create_graph = true.
template <class Fn, class... Inputs>
requires(std::is_convertible_v<const Inputs&, const at::Tensor&>&&...) auto recompute(
    const RecomputeOptions& options, Fn fn, const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Fn&, const Inputs&...>>;
  auto list = [fn = std::move(fn)](const std::vector<at::Tensor>& all) mutable {
    return [&]<size_t... I>(std::index_sequence<I...>) { return detail::to_list(fn(all[I]...)); }
    (std::index_sequence_for<Inputs...>());
  };
  return detail::from_list<Result>(detail::recompute(std::move(list), {inputs...}, options));
}
template <class Fn, class... Inputs>
requires(std::is_convertible_v<const Inputs&, const at::Tensor&>&&...) auto recompute(
    Fn fn, const Inputs&... inputs) {
  return recompute(RecomputeOptions{}, std::move(fn), inputs...);
}

// Returns whether the block of this number is recomputed in backward.
using BlockPolicy = std::function<bool(int64_t block)>;
BlockPolicy every_block(int64_t k = 1);  // every k-th: blocks k - 1, 2k - 1, ...

// For loops over blocks: runs a block on `x`, and recomputes it in backward if the policy says so. The models
// of models/ take one as `run_block` in their configurations.
using BlockRunner = std::function<at::Tensor(
    int64_t block, const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& x)>;
BlockRunner recompute_blocks(BlockPolicy policy = every_block(), const RecomputeOptions& options = {});

// sequential.forward(x), with the modules that the policy selects recomputed in backward. Modules take and
// return one tensor.
at::Tensor recompute_sequential(torch::nn::SequentialImpl& sequential, const at::Tensor& x,
                                const BlockPolicy& policy = every_block(),
                                const RecomputeOptions& options = {});

}  // namespace fsdp
