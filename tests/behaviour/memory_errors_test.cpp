// Promise: where there is no memory, the error says what was asked, what the model holds and what to change;
// and the model goes on when there is memory again.
#include <gtest/gtest.h>

#include "behaviour/toy_device.h"
#include "support/gloo.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kWidth = 256;
constexpr int64_t kSlack = 32 * 1024;  // for numbers that ranks exchange, and small tensors of a step

struct HungryImpl : torch::nn::Module {
  HungryImpl() {
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = first(x);
    if (extra > 0) at::zeros({extra}, x.options());
    return second(h).sum();
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  int64_t extra = 0;
};

using Model = Sharded<HungryImpl>;

class OtherDeviceNoMemory : public ::testing::Test {
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  }
};

ShardOptions by_layer(ShardOptions options = {}) {
  options.wrap = by_type<torch::nn::LinearImpl>();
  options.precision = bf16();
  options.comm = kToyComm;
  return options;
}

at::Tensor input(const World& world, int64_t rows = 4) {
  return torch::ones({rows, kWidth}).to(world.device());
}

void train(Model& model, const World& world, int steps = 3) {
  for (int step = 0; step < steps; ++step) {
    model.zero_grad();
    model(input(world)).backward();
  }
  for (const at::Tensor& slice : model.parameters()) require(slice.grad().defined(), "gradients");
  model.zero_grad();
}

// What `does` throws where `bytes` more can be allocated.
struct Said {
  std::string words = "no MemoryError";
  int64_t bytes = -1;
};
Said said_with(int64_t bytes, const std::function<void()>& does) {
  Said said;
  toy_limit(toy_bytes() + bytes);
  try {
    does();
  } catch (const MemoryError& error) {
    said = {error.what_without_backtrace(), error.bytes()};
  } catch (const std::exception& error) {
    said.words = std::string("another error: ") + error.what();
  }
  toy_limit(kToyUnlimited);
  return said;
}

void require_no_words(const std::string& got, const std::string& words) {
  require(got.find(words) == std::string::npos, "'" + got + "' does not say '" + words + "'");
}

template <class Body>
void memory_errors_each_size(Body body) {
  for (const int ranks : {1, 2}) on_toy_ranks(ranks, body);
}

TEST_F(OtherDeviceNoMemory, WhileAModelIsSharded) {
  memory_errors_each_size([](World& world) {
    const Said said = said_with(
        kSlack, [&] { const auto model = fully_shard(world, std::make_shared<HungryImpl>(), by_layer()); });
    require_words(said.words, "no memory for a unit before it is sharded");
    require_words(said.words, std::to_string(said.bytes) + " bytes");
    require(said.bytes >= 4 * (kWidth * kWidth + kWidth), "a layer: " + said.words);
    require_words(said.words, "The model holds nothing");
    require_words(said.words, "offload.params");
    require_words(said.words, "fsdp::on_meta() around the construction of the module");
    auto model = fully_shard(world, std::make_shared<HungryImpl>(), by_layer());
    train(model, world);
  });
}

TEST_F(OtherDeviceNoMemory, ForASlot) {
  memory_errors_each_size([](World& world) {
    auto model = fully_shard(world, std::make_shared<HungryImpl>(), by_layer());
    train(model, world);
    const Said said = said_with(0, [&] { model.unshard(); });
    require_words(said.words, "rank " + std::to_string(world.rank()) + ": no memory for a slot");
    require(said.bytes >= 2 * (kWidth * kWidth + kWidth), "a layer in bf16: " + said.words);
    for (const char* words : {"The model holds", "shards", "slots", "limit_all_gathers = 1 saves",
                              "max_unit_bytes", "offload.params keeps", "offload.gradients", "recompute"})
      require_words(said.words, words);
    require_no_words(said.words, "fsdp::bf16()");  // it is in use
    require_no_words(said.words, "Strategy::");
    train(model, world);
  });
}

TEST_F(OtherDeviceNoMemory, WhatIsInUseIsNotAdvised) {
  memory_errors_each_size([](World& world) {
    auto model = fully_shard(world, std::make_shared<HungryImpl>(),
                             by_layer({.strategy = Strategy::shard_grad_op,
                                       .max_unit_bytes = 1 << 30,
                                       .limit_all_gathers = 1,
                                       .offload = {.params = true}}));
    train(model, world);
    const Said said = said_with(0, [&] { model.unshard(); });
    require_words(said.words, "no memory for a slot");
    require_words(said.words, "Strategy::full_shard saves");
    for (const char* words : {"limit_all_gathers", "max_unit_bytes", "offload."})
      require_no_words(said.words, words);
  });
}

TEST_F(OtherDeviceNoMemory, ForAnOperatorOfForward) {
  memory_errors_each_size([](World& world) {
    const auto net = std::make_shared<HungryImpl>();
    auto model = fully_shard(world, net, by_layer());
    train(model, world);
    net->extra = 1 << 20;
    const Said said = said_with(net->extra, [&] { model(input(world)); });  // it wants twice as much
    net->extra = 0;
    require_words(said.words, "no memory for an operator inside the model: toy: out of memory");
    require_words(said.words, "The model holds");
    require_words(said.words, "smaller batches");
    require(said.bytes == 0, "the operator did not say how much");
    train(model, world);
  });
}

// The gradient of the second layer's input is as large as the input, and reads the weight.
TEST_F(OtherDeviceNoMemory, ForAnOperatorOfBackward) {
  memory_errors_each_size([](World& world) {
    auto model = fully_shard(world, std::make_shared<HungryImpl>(), by_layer());
    train(model, world);
    const at::Tensor loss = model(input(world, kWidth));
    const Said said = said_with(kSlack, [&] { loss.backward(); });
    require_words(said.words, "no memory for an operator that reads a parameter: toy: out of memory");
    require_words(said.words, "The model holds");
    train(model, world);
  });
}

// The second call finds a plan, and takes memory for it.
TEST_F(OtherDeviceNoMemory, ForWhatIsPlanned) {
  on_toy_ranks(2, [](World& world) {
    auto model = fully_shard(world, std::make_shared<HungryImpl>(), by_layer());
    train(model, world, 1);
    const at::Tensor x = input(world);
    const Said said = said_with(-toy_bytes(), [&] { model(x); });
    require(said.words.find("slots of gathered units") != std::string::npos ||
                said.words.find("gradient buffers") != std::string::npos,
            said.words);
    require_words(said.words, "The model holds");
    train(model, world);
  });
}

// Unsharded gradients are most of what such a model holds: to reduce them comes first.
TEST_F(OtherDeviceNoMemory, UnderNoSync) {
  on_toy_ranks(2, [](World& world) {
    auto model = fully_shard(world, std::make_shared<HungryImpl>(), by_layer());
    train(model, world);
    const auto scope = model.no_sync();
    model(input(world)).backward();
    const Said said = said_with(0, [&] { model.unshard(); });
    require_words(said.words, "gradient buffers");
    const size_t fits = said.words.find("What would make it fit:\n  no no_sync()");
    require(fits != std::string::npos, "it is the first advice: " + said.words);
  });
}

TEST_F(OtherDeviceNoMemory, IsStillLibTorchsError) {
  on_toy_ranks(1, [](World& world) {
    auto model = fully_shard(world, std::make_shared<HungryImpl>(), by_layer());
    toy_limit(toy_bytes());
    bool caught = false;
    try {
      model.unshard();
    } catch (const c10::OutOfMemoryError&) {
      caught = true;
    }
    toy_limit(kToyUnlimited);
    require(caught, "who catches c10::OutOfMemoryError catches it");
  });
}

}  // namespace
}  // namespace fsdp::testing
