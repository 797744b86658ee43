// Finds the tensors in an argument, moves and casts them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsdp::detail {

// The dtype to which floating-point tensors are cast and the device to which all move; not set: unchanged.
struct InputCast {
  std::optional<at::ScalarType> to = {};
  std::optional<c10::Device> device = {};
};

// True if cast_tensor() would return another tensor.
bool changes(const InputCast& cast, const at::Tensor& tensor);
at::Tensor cast_tensor(const InputCast& cast, const at::Tensor& tensor);

// Casts tensors, also inside vectors, arrays, maps, tuples, pairs, optionals and the members listed by
// fsdp_each_tensor(); other types pass unchanged. A Caster that casts has each(value, fn), which visits them.
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
    return cast_tensor(cast, tensor);
  }
};

// Casts the members of a copy of the value. `Each` calls fn(member) for every member, const or not.
template <class T, class Each>
struct CopyCaster {
  template <class Fn>
  static void each(const T& value, Fn fn) {
    Each()(value, fn);
  }
  static T apply(const InputCast& cast, const T& value) {
    T result = value;
    Each()(result, [&](auto& member) { member = cast_argument(cast, member); });
    return result;
  }
};
struct EachElement {
  void operator()(auto& values, auto fn) const {
    for (auto& value : values) fn(value);
  }
};
struct EachMapped {
  void operator()(auto& values, auto fn) const {
    for (auto& [key, value] : values) fn(value);
  }
};
struct EachMember {
  void operator()(auto& values, auto fn) const {
    std::apply([&](auto&... one) { (fn(one), ...); }, values);
  }
};
struct EachIfAny {
  void operator()(auto& value, auto fn) const {
    if (value) fn(*value);
  }
};
template <class T>
struct Caster<std::vector<T>> : CopyCaster<std::vector<T>, EachElement> {
  static constexpr bool kCasts = Caster<T>::kCasts;
};
template <class T, size_t N>
struct Caster<std::array<T, N>> : CopyCaster<std::array<T, N>, EachElement> {
  static constexpr bool kCasts = Caster<T>::kCasts;
};
template <class K, class V, class... Rest>
struct Caster<std::map<K, V, Rest...>> : CopyCaster<std::map<K, V, Rest...>, EachMapped> {
  static constexpr bool kCasts = Caster<V>::kCasts;
};
template <class K, class V, class... Rest>
struct Caster<std::unordered_map<K, V, Rest...>> : CopyCaster<std::unordered_map<K, V, Rest...>, EachMapped> {
  static constexpr bool kCasts = Caster<V>::kCasts;
};
template <class T>
struct Caster<std::optional<T>> : CopyCaster<std::optional<T>, EachIfAny> {
  static constexpr bool kCasts = Caster<T>::kCasts;
};
template <class A, class B>
struct Caster<std::pair<A, B>> : CopyCaster<std::pair<A, B>, EachMember> {
  static constexpr bool kCasts = Caster<A>::kCasts || Caster<B>::kCasts;
};
template <class... Ts>
struct Caster<std::tuple<Ts...>> : CopyCaster<std::tuple<Ts...>, EachMember> {
  static constexpr bool kCasts = (Caster<Ts>::kCasts || ...);
};

// A user's own type opts in with a function beside it that lists its tensors and members that contain some:
//   template <class Fn> void fsdp_each_tensor(Batch& batch, Fn fn) { fn(batch.x), fn(batch.y); }
struct LookAt {
  void operator()(const auto&) const {}
};
template <class T>
concept ListsTensors = std::copy_constructible<T> && requires(T& value) {
  fsdp_each_tensor(value, LookAt());
};
struct EachListed {
  void operator()(auto& value, auto fn) const { fsdp_each_tensor(value, fn); }
  template <class T>
  void operator()(const T& value, auto fn) const {
    T copy = value;
    fsdp_each_tensor(copy, fn);
  }
};
template <ListsTensors T>
struct Caster<T> : CopyCaster<T, EachListed> {
  static constexpr bool kCasts = true;
};
struct EachOfExample {
  void operator()(auto& example, auto fn) const { fn(example.data), fn(example.target); }
};
template <class Data, class Target>
requires(!std::is_void_v<Target>) struct Caster<torch::data::Example<Data, Target>>
    : CopyCaster<torch::data::Example<Data, Target>, EachOfExample> {
  static constexpr bool kCasts = Caster<Data>::kCasts || Caster<Target>::kCasts;
};

}  // namespace fsdp::detail
