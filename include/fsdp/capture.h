// capture(): forward and backward of a training step as one CUDA graph, for small models on fast GPUs.
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

// Captures and replays a step of a model of any type.
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

// A training step: step(args...) runs `loss = model(args...); loss.backward();` and returns the detached
// loss. Throws what these two throw. Owns the captured memory and shares the model. Threads: one at a time.
// Ordered with the current stream, as ordinary operators are. See capture().
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

  // The number of steps replayed so far.
  int64_t replays() const { return step_.replays(); }

 private:
  template <size_t... I>
  at::Tensor call(const std::vector<at::Tensor>& inputs, std::index_sequence<I...>) {
    return model_(inputs[I]...);
  }

  Sharded<M> model_;
  detail::CapturedStep step_;
};

// Three steps run as usual; the fourth is captured as a CUDA graph, and from then on the host launches one
// graph per step instead of every kernel. The model must run the same operators in every step and not read a
// device value on the host. A step runs as usual if its inputs have another shape, gradients are already
// there, no_sync() is open, or the model is in evaluation. All steps run as usual on the CPU, on several
// ranks, in reproducible mode, and if capturing fails (with a warning).
template <class M>
[[nodiscard]] Captured<M> capture(const Sharded<M>& model) {
  return Captured<M>(model);
}

}  // namespace fsdp
