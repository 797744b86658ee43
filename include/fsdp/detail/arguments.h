// What happens around a call of forward: entering the model, casting what goes in and comes out.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp::detail {

class Engine;

// To which type floating tensors are cast; none: they stay.
struct InputCast {
  std::optional<at::ScalarType> to = {};
};

at::Tensor cast_floating(const at::Tensor& tensor, std::optional<at::ScalarType> type);

// Tensors, and tensors inside vectors, tuples, pairs and optionals, are cast; anything else passes.
template <class T>
struct Caster {
  static constexpr bool kCasts = false;
};
template <class T>
decltype(auto) cast_argument(const InputCast& cast, T&& value) {
  using Value = std::remove_cvref_t<T>;
  if constexpr (Caster<Value>::kCasts)
    return Caster<Value>::apply(cast, value);
  else
    return std::forward<T>(value);
}
template <>
struct Caster<at::Tensor> {
  static constexpr bool kCasts = true;
  static at::Tensor apply(const InputCast& cast, const at::Tensor& tensor) {
    return cast_floating(tensor, cast.to);
  }
};
template <class T>
struct Caster<std::vector<T>> {
  static constexpr bool kCasts = Caster<T>::kCasts;
  template <class Fn>
  static void each(const std::vector<T>& values, Fn fn) {
    for (const auto& value : values) fn(value);
  }
  static std::vector<T> apply(const InputCast& cast, const std::vector<T>& values) {
    std::vector<T> result;
    for (const auto& value : values) result.push_back(cast_argument(cast, value));
    return result;
  }
};
template <class T>
struct Caster<std::optional<T>> {
  static constexpr bool kCasts = Caster<T>::kCasts;
  template <class Fn>
  static void each(const std::optional<T>& value, Fn fn) {
    if (value) fn(*value);
  }
  static std::optional<T> apply(const InputCast& cast, const std::optional<T>& value) {
    return value ? std::optional<T>(cast_argument(cast, *value)) : std::nullopt;
  }
};
template <class A, class B>
struct Caster<std::pair<A, B>> {
  static constexpr bool kCasts = Caster<A>::kCasts || Caster<B>::kCasts;
  template <class Fn>
  static void each(const std::pair<A, B>& pair, Fn fn) {
    fn(pair.first), fn(pair.second);
  }
  static std::pair<A, B> apply(const InputCast& cast, const std::pair<A, B>& pair) {
    return {cast_argument(cast, pair.first), cast_argument(cast, pair.second)};
  }
};
template <class... Ts>
struct Caster<std::tuple<Ts...>> {
  static constexpr bool kCasts = (Caster<Ts>::kCasts || ...);
  template <class Fn>
  static void each(const std::tuple<Ts...>& values, Fn fn) {
    std::apply([&](const auto&... one) { (fn(one), ...); }, values);
  }
  static std::tuple<Ts...> apply(const InputCast& cast, const std::tuple<Ts...>& values) {
    return std::apply([&](const auto&... each) { return std::tuple<Ts...>(cast_argument(cast, each)...); },
                      values);
  }
};

// The tensors among forward's arguments, also inside containers, to notice ranks that are fed the same batch.
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

// Between construction and destruction, the model's parameters may be used.
class Entry {
 public:
  Entry(Engine& engine, const std::vector<at::Tensor>& arguments);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // What the caller is about to get instead of a result.
  void failed(const std::exception& error);
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
  } catch (const std::exception& error) {
    entry.failed(error);
    throw;
  } catch (...) {
    entry.failed(std::runtime_error("an exception of unknown type"));
    throw;
  }
}

}  // namespace fsdp::detail
