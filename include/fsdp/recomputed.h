// Recomputed<Block>: activation checkpointing of a module by its type, without a change to its code.
#pragma once

#include <fsdp/recompute.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp {

namespace detail {

template <class T>
inline constexpr bool is_tensor = std::is_same_v<std::decay_t<T>, at::Tensor>;
template <class T>
inline constexpr bool is_view = std::is_pointer_v<std::decay_t<T>>;
template <class T>
inline constexpr bool is_view<at::ArrayRef<T>> = true;
template <>
inline constexpr bool is_view<std::string_view> = true;
template <class T>
inline constexpr bool is_optional_tensor = std::is_same_v<std::decay_t<T>, std::optional<at::Tensor>>;

// The type of a forward, without its const.
template <class Forward>
struct PlainForward {
  using type = Forward;
};
template <class Owner, class Result, class... Args>
struct PlainForward<Result (Owner::*)(Args...) const> {
  using type = Result (Owner::*)(Args...);
};

// Tag type of the copying constructor, so that it collides with no constructor of Impl.
template <class Impl>
struct CopyOf {
  const Impl& of;
};

// Moves the tensors among the arguments of a forward to the inputs of recompute(), so that only these keep
// them alive. An absent one is an undefined input.
template <class T>
void take_input(std::vector<at::Tensor>& inputs, T& argument) {
  if constexpr (is_tensor<T>)
    inputs.push_back(std::exchange(argument, at::Tensor()));
  else if constexpr (is_optional_tensor<T>)
    inputs.push_back(argument ? std::exchange(*argument, at::Tensor()) : at::Tensor());
}

// Puts `inputs` back where they were among the arguments.
template <class T>
void put_input(std::vector<at::Tensor>::const_iterator& input, T& argument) {
  if constexpr (is_tensor<T>) {
    argument = *input++;
  } else if constexpr (is_optional_tensor<T>) {
    if (argument.has_value()) argument = *input;
    ++input;
  }
}

// forward(args...) of `module` through recompute(). The graph keeps the module and the other arguments alive.
template <class Result, class... Kept, class Module, class Forward>
Result recompute_forward(const RecomputeOptions& options, Module& module, Forward forward, Kept... kept) {
  static_assert(
      !(is_view<Kept> || ...),
      "fsdp::Recomputed: forward takes a view (ArrayRef, string_view, pointer), whose memory may be "
      "gone when backward runs it again. Take a std::vector or std::string, or call fsdp::recompute()");
  std::vector<at::Tensor> inputs;
  (take_input(inputs, kept), ...);
  const auto keeps_module = module.weak_from_this().lock();
  const auto arguments = std::make_shared<const std::tuple<Kept...>>(std::move(kept)...);
  auto run = [&module, keeps_module, forward, arguments](const std::vector<at::Tensor>& all) {
    auto own = *arguments;
    auto input = all.begin();
    return std::apply(
        [&](auto&... argument) {
          (put_input(input, argument), ...);
          return to_list(forward(module, argument...));
        },
        own);
  };
  return from_list<Result>(recompute(std::move(run), inputs, options));
}

}  // namespace detail

// A module of type `Impl` whose activations are not kept: see recompute(). It is an Impl, has its
// constructors and the signature of its forward, which must be one function and no template, take its
// arguments by value or const reference, and return a tensor, or a std::vector or std::tuple of tensors.
// Default arguments of forward are not known here: pass them all.
template <class Impl, class Forward = typename detail::PlainForward<decltype(&Impl::forward)>::type>
class RecomputedImpl;

template <class Impl, class Owner, class Result, class... Args>
class RecomputedImpl<Impl, Result (Owner::*)(Args...)> : public Impl {
 public:
  using Impl::Impl;

  Result forward(Args... args) {
    const auto call = [](Impl& module, auto&... all) { return module.Impl::forward(all...); };
    return detail::recompute_forward<Result, std::decay_t<Args>...>(recompute_options,
                                                                    static_cast<Impl&>(*this), call, args...);
  }

  // Clones by Impl::clone(), and keeps the options.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    const auto copy = std::dynamic_pointer_cast<Impl>(Impl::clone(device));
    TORCH_CHECK(copy != nullptr, "fsdp: clone() of ", Impl::name(), " returns a module of another type");
    auto recomputed = std::make_shared<RecomputedImpl>(detail::CopyOf<Impl>{*copy});
    recomputed->recompute_options = recompute_options;
    return recomputed;
  }
  explicit RecomputedImpl(const detail::CopyOf<Impl>& copy) : Impl(copy.of) {}

  RecomputeOptions recompute_options;
};

// The holder: where a model says `Block`, say `fsdp::Recomputed<Block>`, for example
//   using Layer = fsdp::Recomputed<torch::nn::TransformerEncoderLayer>;
//   blocks->push_back(fsdp::Recomputed<Block>(config));
template <class Holder>
class Recomputed : public torch::nn::ModuleHolder<RecomputedImpl<typename Holder::ContainedType>> {
 public:
  using torch::nn::ModuleHolder<RecomputedImpl<typename Holder::ContainedType>>::ModuleHolder;
};

}  // namespace fsdp
