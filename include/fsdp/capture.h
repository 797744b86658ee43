// capture(): forward and backward of a training step as one CUDA graph, for models that wait for their host.
#pragma once

#include <fsdp/sharded.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fsdp {

namespace detail {

// What is captured and replayed, whatever the model's type.
class CapturedStep {
 public:
  using Forward = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

  explicit CapturedStep(ShardedModel model);
  ~CapturedStep();
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;

  at::Tensor run(const std::vector<at::Tensor>& inputs, const Forward& forward);
  int64_t replays() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail

// A training step of `model`: step(args...) is `loss = model(args...); loss.backward();` and returns the
// detached loss. See capture().
template <class M>
class Captured {
 public:
  explicit Captured(Sharded<M> model) : model_(std::move(model)), step_(model_) {}

  template <std::convertible_to<at::Tensor>... Args>
  at::Tensor operator()(const Args&... args) {
    return step_.run({at::Tensor(args)...}, [this](const std::vector<at::Tensor>& inputs) {
      return call(inputs, std::index_sequence_for<Args...>());
    });
  }

  // How many steps were replays so far.
  int64_t replays() const { return step_.replays(); }

 private:
  template <size_t... I>
  at::Tensor call(const std::vector<at::Tensor>& inputs, std::index_sequence<I...>) {
    return model_(inputs[I]...);
  }

  Sharded<M> model_;
  detail::CapturedStep step_;
};

// Three steps run as usual; the fourth is recorded as a CUDA graph, and from then on a step is one launch
// instead of a thousand. The model must do the same operators in every step and not read a device value on
// the host. A step that differs (inputs of another shape, gradients that are to be added up, no_sync(),
// evaluation) runs as usual. On CPUs, on several ranks, and where recording fails (with a warning), all do.
template <class M>
[[nodiscard]] Captured<M> capture(const Sharded<M>& model) {
  return Captured<M>(model);
}

}  // namespace fsdp
