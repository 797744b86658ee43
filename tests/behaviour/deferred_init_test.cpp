// Promise: a model made inside on_meta() has no memory until it is sharded, and then the bits of an ordinary
// construction with the same random numbers.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <fstream>

#include "support/allocator_watch.h"
#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
namespace nn = torch::nn;

// Every way to begin: layers' own, nn::init, buffers by formula and by list, parameters by hand.
struct Zoo : nn::Module {
  Zoo() {
    linear = register_module("linear", nn::Linear(24, 24));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({24})));
    table = register_module("table", nn::Embedding(30, 24));
    batch_norm = register_module("batch_norm", nn::BatchNorm1d(8));
    recurrent = register_module("recurrent", nn::LSTM(nn::LSTMOptions(8, 8).num_layers(2)));
    attention = register_module("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(16, 4)));
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 8, 3)));
    nn::init::normal_(linear->weight, 0, 0.02);
    nn::init::orthogonal_(table->weight);
    const auto angles = torch::outer(torch::arange(8, torch::kFloat),
                                     torch::pow(10000.0, torch::arange(4, torch::kFloat) / 4).reciprocal());
    cosines = register_buffer("cosines", angles.cos());
    list = register_buffer("list", torch::tensor({1.0, 2.0, 3.0}));
    mixed = register_buffer("mixed", torch::ones({3}) * torch::tensor({4.0F, 5.0F, 6.0F}));
    own = register_parameter("own", torch::randn({5, 3}) * 0.5);
    like = register_parameter("like", torch::randn_like(own));
    joined = register_parameter("joined", torch::cat({torch::rand({2}), torch::zeros({1})}));
  }
  Tensor forward(const Tensor& ids) {
    const Tensor x = norm(linear(table(ids)));
    return x.square().sum() + (own * like).sum() + joined.sum() + batch_norm->weight.sum();
  }
  nn::Linear linear{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Embedding table{nullptr};
  nn::BatchNorm1d batch_norm{nullptr};
  nn::LSTM recurrent{nullptr};
  nn::MultiheadAttention attention{nullptr};
  nn::Conv2d conv{nullptr};
  Tensor cosines, list, mixed, own, like, joined;
};

State tensors_of(const nn::Module& module) {
  State state;
  for (const auto& item : module.named_parameters()) state[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) state[item.key()] = item.value().detach().clone();
  return state;
}

State ordinary(uint64_t seed) {
  const SeededHere seeded(seed);
  return tensors_of(Zoo());
}

std::shared_ptr<Zoo> deferred(uint64_t seed) {
  const SeededHere seeded(seed);
  return on_meta([] { return std::make_shared<Zoo>(); });
}

TEST(DeferredInit, HasNoMemoryAndThenTheSameBits) {
  const auto zoo = deferred(3);
  for (const auto& item : zoo->named_parameters()) EXPECT_TRUE(item.value().is_meta()) << item.key();
  for (const auto& item : zoo->named_buffers()) EXPECT_TRUE(item.value().is_meta()) << item.key();
  EXPECT_FALSE(torch::zeros({1}).is_meta()) << "outside of it all is as before";
  torch::rand({7});  // what is drawn in between does not matter
  materialize(*zoo);
  EXPECT_EQ(difference(tensors_of(*zoo), ordinary(3)), "");
  EXPECT_TRUE(zoo->own.requires_grad());
}

TEST(DeferredInit, ShardsHaveTheSameBits) {
  const State wanted = ordinary(4);
  for (const int ranks : {1, 2, 3, 4})
    for (const auto precision : {fp32(), bf16()}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks");
      EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
        const auto zoo = deferred(4);
        auto model = fully_shard(world, zoo, {.wrap = by_size(100), .precision = precision});
        model(torch::arange(world.rank(), world.rank() + 5)).backward();
        const auto whole = model.full_params();
        require_same(tensors_of(*zoo), wanted);
      }));
    }
}

TEST(DeferredInit, RandomNumbersAreThoseOfRankZero) {
  const State wanted = ordinary(10);
  EXPECT_NO_THROW(run_ranks(3, [&](World& world) {
    const auto zoo = deferred(static_cast<uint64_t>(10 + world.rank()));
    auto model = fully_shard(world, zoo);
    const auto whole = model.full_params();
    require_same(tensors_of(*zoo), wanted);
  }));
}

TEST(DeferredInit, RankZeroMayLoadAloneWhileOthersHaveNoMemory) {
  const State wanted = ordinary(5);
  EXPECT_NO_THROW(run_ranks(3, [&](World& world) {
    std::shared_ptr<Zoo> zoo;
    if (world.rank() == 0) {
      const SeededHere seeded(5);
      zoo = std::make_shared<Zoo>();
    } else {
      zoo = deferred(77);
    }
    auto model = fully_shard(world, zoo);
    const auto whole = model.full_params();
    require_same(tensors_of(*zoo), wanted);
  }));
}

struct OnMeta : nn::Module {
  OnMeta() { weight = register_parameter("weight", torch::empty({6, 5}, torch::kMeta)); }
  Tensor forward(const Tensor& x) { return x.matmul(weight).sum(); }
  Tensor weight;
};

TEST(DeferredInit, AFunctionMayFillWhatHasNoTape) {
  run_ranks(2, [](World& world) {
    const auto fill = [](const std::string& name, Tensor& whole) { whole.fill_(name == "weight" ? 3 : 0); };
    auto model = fully_shard(world, std::make_shared<OnMeta>(), {.init = fill});
    model(torch::ones({1, 6})).backward();
    const auto whole = model.full_params();
    require(model.module().weight.eq(3).all().item<bool>(), "filled");
  });
}

TEST(DeferredInit, MisuseIsAnsweredInWords) {
  require_words(refusal([] { on_meta([] { return torch::ones({1}).item<float>(); }); }),
                "cannot run without memory");
  run_ranks(1, [&](World& world) {
    require_words(refusal([&] { fully_shard(world, std::make_shared<OnMeta>()); }),
                  "'weight' is on the meta device");
  });
  EXPECT_FALSE(torch::zeros({1}).is_meta()) << "an error ends it too";
}

// --- memory

struct Deep : nn::Module {
  explicit Deep(int64_t width, int64_t depth) {
    for (int64_t i = 0; i < depth; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(width, width)));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = layer(x).tanh();
    return x.square().mean();
  }
  std::vector<nn::Linear> layers;
};

// Peak while it is sharded: the shards, and one parameter in the making (its values, and a copy in order).
TEST(DeferredInit, NeedsOneUnitAboveTheShards) {
  constexpr int64_t kWidth = 256, kDepth = 12;
  constexpr int64_t kLayer = (kWidth * kWidth + kWidth) * 4;
  for (const int ranks : {1, 2, 4})
    run_processes(ranks, [&](World& world) {
      auto deep = on_meta([&] { return std::make_shared<Deep>(kWidth, kDepth); });
      const AllocatorWatch watch;
      auto model = fully_shard(world, deep, {.wrap = by_type_name({"Linear"})});
      const int64_t slack = 256 * 1024;
      const int64_t shards = kDepth * kLayer / world.size();
      require(watch.peak_bytes() <= shards + 2 * kLayer + slack,
              std::to_string(watch.peak_bytes()) + " bytes at the peak, shards " + std::to_string(shards) +
                  ", one layer " + std::to_string(kLayer));
    });
}

int64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmData:" && status >> kib) return kib * 1024;
  }
  return 0;
}

// 403 MB of weights, and as much of gradients, in processes that may take 340 MB each. Shared memory does not
// count there: shards are each process's own.
TEST(DeferredInit, AModelLargerThanTheLimitTrains) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need memory of their own";
#endif
  constexpr int64_t kWidth = 2048, kDepth = 24;
  run_processes(4, [&](World& world) {
    at::set_num_threads(1);
    ::mallopt(M_MMAP_THRESHOLD, 1 << 20);  // what is freed goes back at once: no heap with holes
    const rlimit limit{.rlim_cur = static_cast<rlim_t>(data_bytes()) + 340 * 1000 * 1000,
                       .rlim_max = RLIM_INFINITY};
    require(::setrlimit(RLIMIT_DATA, &limit) == 0, "the limit is set");
    std::string heard = "nothing";
    try {
      Deep(kWidth, kDepth);
    } catch (const std::exception& error) {
      heard = error.what();
    }
    require(heard.find("memory") != std::string::npos, "too large for a process, but it said: " + heard);
    auto model = fully_shard(world, on_meta([&] { return std::make_shared<Deep>(kWidth, kDepth); }),
                             {.wrap = by_type_name({"Linear"}), .share_shards = false});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    model(torch::ones({2, kWidth}) * (world.rank() + 1)).backward();
    optimizer.step();
    const Tensor loss = model(torch::ones({2, kWidth}));
    require(loss.isfinite().item<bool>(), "finite");
  });
}

}  // namespace
}  // namespace fsdp::testing
