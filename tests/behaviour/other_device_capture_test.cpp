// Promise: a gradient that a program keeps is never written again, by replays of a captured step neither.
#include <gtest/gtest.h>

#include "behaviour/toy_device.h"
#include "graph/device_graph.h"
#include "support/gloo.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

// The memory of the gradients that were there when a recording ended, as a recording knows it: by address.
struct Recorded {
  struct Piece {
    void* data;
    int64_t numel;
  };
  std::function<std::vector<Tensor>()> slices;
  std::vector<Piece> pieces;
  int replays = 0;
};

// Replay n writes n into all of them.
class NumberingGraph final : public detail::DeviceGraph {
 public:
  explicit NumberingGraph(Recorded& recorded) : recorded_(recorded) {}
  void begin() override {}
  void end() override {
    for (const Tensor& slice : recorded_.slices())
      recorded_.pieces.push_back({slice.grad().mutable_data_ptr(), slice.grad().numel()});
  }
  void replay() override {
    ++recorded_.replays;
    for (const auto& [data, numel] : recorded_.pieces)
      at::for_blob(data, {numel})
          .options(at::TensorOptions(toy_device()).dtype(at::kFloat))
          .target_device(toy_device())
          .make_tensor()
          .fill_(recorded_.replays);
  }

 private:
  Recorded& recorded_;
};

bool all_are(const Tensor& tensor, int number) { return tensor.cpu().eq(number).all().item<bool>(); }

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 4));
  }
  Tensor forward(const Tensor& x) { return second(first(x).tanh()).square().mean(); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

TEST(OtherDeviceCapture, AKeptGradientIsNotWrittenByReplays) {
  if (!gloo_available()) GTEST_SKIP() << "built without gloo's headers (libgloo-dev)";
  on_toy_ranks(1, [](World& world) {
    Recorded recorded;
    detail::other_device_graphs() = [&](c10::Device) { return std::make_unique<NumberingGraph>(recorded); };
    auto model = fully_shard(world, std::make_shared<Net>(), {.wrap = by_size(10), .comm = kToyComm});
    recorded.slices = [&] { return model.parameters(); };
    auto step = capture(model);
    const Tensor x = torch::ones({2, 6}).to(world.device());
    Tensor kept, view;
    for (int i = 0; i < 8; ++i) {
      step(x);
      const auto slices = model.parameters();
      for (const Tensor& slice : slices)
        require(recorded.replays == 0 || all_are(slice.grad(), recorded.replays), "a replay's gradient");
      if (recorded.replays == 2) kept = slices[0].grad();
      if (recorded.replays == 3) view = slices[3].grad().view({2, 2});
      model.zero_grad();
    }
    require(recorded.replays == 5 && step.replays() == 5, "steps are replayed");
    require(all_are(kept, 2), "a gradient that was kept");
    require(all_are(view, 3), "a view of a gradient that was kept");
    detail::other_device_graphs() = {};
  });
}

}  // namespace
}  // namespace fsdp::testing
