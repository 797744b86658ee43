// recompute(): activations are computed again in backward instead of being kept from forward.
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
  bool keep_rng = true;         // the second run draws the random numbers of the first
  bool offload_inputs = false;  // what is kept lies in host memory until backward
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

// Returns fn(inputs...), which is a tensor, or a std::vector or std::tuple of tensors. Only the inputs are
// kept, which may be undefined; backward runs `fn` once more to have what it needs, with the random numbers
// (options.keep_rng; also those of generators given to operators) and the autocast state of the first run.
// Gradients are those of fn(inputs...), bit for bit where `fn` is deterministic and reads a parameter once.
// Buffers that `fn` writes, such as running statistics, keep what the first run wrote. For modules, sharded
// or not; calls may be nested. Where no result needs gradients it is a plain call.
//
// `fn` is copied, and called from backward: what it captures by reference must live until then. It must
// compute the same from the same inputs. Throws c10::Error where `fn` captured a tensor that needs gradients
// and is no parameter, and where it wrote to an input. Backward throws it where a parameter of `fn` was
// written since forward, and with create_graph = true.
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

// Which blocks of a model, by their number, are computed again.
using BlockPolicy = std::function<bool(int64_t block)>;
BlockPolicy every_block(int64_t k = 1);  // every k-th: blocks k - 1, 2k - 1, ...

// For loops over blocks: runs a block on `x`, and again in backward where the policy says so. The models of
// models/ take one as `run_block` in their configurations.
using BlockRunner = std::function<at::Tensor(
    int64_t block, const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& x)>;
BlockRunner recompute_blocks(BlockPolicy policy = every_block(), const RecomputeOptions& options = {});

// sequential.forward(x), of which the modules that the policy names are computed again. Modules take and
// return one tensor.
at::Tensor recompute_sequential(torch::nn::SequentialImpl& sequential, const at::Tensor& x,
                                const BlockPolicy& policy = every_block(),
                                const RecomputeOptions& options = {});

}  // namespace fsdp
