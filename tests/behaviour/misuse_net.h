// A net that misuse tests shard.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/twins.h"

namespace fsdp::testing {

using at::Tensor;

// A net whose forward can be told to do something else first.
struct PlayNet : Learner {
  PlayNet() {
    const SeededHere seeded(11);
    table = register_module("table", torch::nn::Embedding(9, 12));
    first = register_module("first", torch::nn::Linear(12, 14));
    second = register_module("second", torch::nn::Linear(14, 12));
    head = register_module("head", torch::nn::Linear(12, 5));
  }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(70 + index));
    return {torch::randint(9, {6}, gen), torch::randn({6, 5}, gen)};
  }
  Tensor forward(const std::vector<Tensor>& batch) override {
    if (inside) inside(*this);
    auto x = table(batch[0]);
    x = swapped ? first(second(x.narrow(1, 0, 12).matmul(torch::ones({12, 14}))).tanh())
                : second(first(x).tanh());
    if (swapped) x = x.narrow(1, 0, 12);
    return torch::mse_loss(head(x), batch[1]);
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr}, head{nullptr};
  std::function<void(PlayNet&)> inside;
  bool swapped = false;
};

using Play = ShardedTwin<PlayNet>;

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;
};

}  // namespace fsdp::testing
