// Calls of forward: entering the model, casting arguments and results.
#pragma once

#include <fsdp/detail/casts.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp::detail {

class Engine;

// Collects the tensors among forward's arguments, in containers too, to warn if ranks get equal batches.
template <class T>
void collect(std::vector<at::Tensor>& tensors, const T& value) {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
    tensors.push_back(value);
  } else if constexpr (Caster<T>::kCasts) {
    Caster<T>::each(value, [&](const auto& inner) { collect(tensors, inner); });
  }
}
template <class... Args>
std::vector<at::Tensor> fingerprint(const Args&... args) {
  std::vector<at::Tensor> tensors;
  (collect(tensors, args), ...);
  return tensors;
}

// A call of the model: while it lives, operators may read the model's parameters.
class Entry {
 public:
  Entry(Engine& engine, const std::vector<at::Tensor>& arguments);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // Tells the model that the call throws `error`.
  void failed(std::exception& error);
  const InputCast& input() const { return input_; }
  const InputCast& output() const { return output_; }

 private:
  Engine& engine_;
  InputCast input_;
  InputCast output_;
};

template <class Fn>
auto call(Engine& engine, Fn&& fn, const std::vector<at::Tensor>& arguments) {
  Entry entry(engine, arguments);
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn, const InputCast&>>)
      fn(entry.input());
    else
      return cast_argument(entry.output(), fn(entry.input()));
  } catch (std::exception& error) {
    entry.failed(error);
    throw;
  } catch (...) {
    std::runtime_error unknown("an exception of unknown type");
    entry.failed(unknown);
    throw;
  }
}

// True if an argument is a variable of the caller that can be cast in place, for a non-const reference in
// forward. Otherwise forward gets a cast copy.
template <class Arg>
constexpr bool kVariable =
    std::is_lvalue_reference_v<Arg> && !std::is_const_v<std::remove_reference_t<Arg>> &&
    Caster<std::remove_cvref_t<Arg>>::kCasts;
template <bool InPlace, class Arg>
decltype(auto) pass(const InputCast& cast, Arg&& arg) {
  if constexpr (InPlace && kVariable<Arg>) {
    arg = cast_argument(cast, arg);
    return static_cast<Arg>(arg);
  } else {
    return cast_argument(cast, std::forward<Arg>(arg));
  }
}

// True if forward compiles with argument i cast in place for each bit i of `Mask`.
template <size_t Mask, class M, class... Args, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires(M & module, const InputCast& cast) {
    module.forward(pass<((Mask >> I) & 1) != 0, Args>(cast, std::declval<Args>())...);
  };
}
// The first mask that compiles; 0 if none does, so that the compiler reports the plain call.
template <size_t Mask, class M, class... Args>
constexpr size_t in_place_mask() {
  if constexpr (takes<Mask, M, Args...>(std::index_sequence_for<Args...>()))
    return Mask;
  else if constexpr (Mask + 1 < size_t{1} << std::min<size_t>(sizeof...(Args), 8))
    return in_place_mask<Mask + 1, M, Args...>();
  else
    return 0;
}

template <class M, class... Args>
auto call_forward(M& module, const InputCast& cast, Args&&... args) {
  constexpr size_t kMask = in_place_mask<0, M, Args&&...>();
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return module.forward(pass<((kMask >> I) & 1) != 0, Args&&>(cast, std::forward<Args>(args))...);
  }
  (std::index_sequence_for<Args...>());
}

}  // namespace fsdp::detail
