// Promise: what ranks send each other can be transformed, in gathers and in reduces.
#include <gtest/gtest.h>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

// 8 bits an element and one scale per part.
struct Int8 : Codec {
  int64_t wire_bytes(int64_t numel) const override { return numel + 4; }
  void encode(const at::Tensor& values, const at::Tensor& wire) const override {
    const at::Tensor scale = values.abs().max().to(at::kFloat).div(127).clamp_min(1e-12);
    wire.narrow(0, 0, 4).view(at::kFloat).copy_(scale);
    wire.narrow(0, 4, values.numel()).view(at::kChar).copy_(values.div(scale).round());
  }
  void decode(const at::Tensor& wire, const at::Tensor& values) const override {
    values.copy_(wire.narrow(0, 4, values.numel()).view(at::kChar));
    at::Tensor(values).mul_(wire.narrow(0, 0, 4).view(at::kFloat));
  }
};

int64_t bytes_of(const ShardedModel& model, const std::string& op) {
  int64_t bytes = 0;
  for (const auto& one : model.comm_stats())
    if (one.op == op) bytes += one.bytes;
  return bytes;
}

TEST(Codec, ParametersArriveDecoded) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](World& world) {
      const auto type = ranks == 1 ? at::kFloat : at::kBFloat16;  // alone, nothing is sent
      auto model = fully_shard(world, make_learner("gpt2"),
                               {.wrap = by_size(200), .gather_codec = cast_codec(at::kBFloat16)});
      const State masters = state_of(model);
      State seen;
      model.run([&](Learner& learner) {
        const at::NoGradGuard no_grad;
        for (auto& item : learner.named_parameters()) seen[item.key()] = item.value() * 1;
      });
      for (const auto& [name, value] : seen)
        require(at::equal(value, masters.at(name).to(type).to(at::kFloat)), name);
      train_sharded(model, world, 4, Optim::sgd);
    });
  }
}

TEST(Codec, GradientsArriveDecoded) {
  run_ranks(4, [](World& world) {
    const ShardOptions exact{.wrap = by_size(200)};
    ShardOptions coded = exact;
    coded.reduce_codec = cast_codec(at::kBFloat16);
    // The same batch on every rank: the average of equal bf16 gradients is the bf16 gradient itself.
    auto plain = fully_shard(world, make_learner("mlp"), exact);
    auto model = fully_shard(world, make_learner("mlp"), coded);
    for (int step = 0; step < 3; ++step) {
      plain(plain.module().batch(step)).backward();
      model(model.module().batch(step)).backward();
      const auto wanted = plain.parameters(), found = model.parameters();
      for (size_t i = 0; i < wanted.size(); ++i)
        require(at::equal(found[i].grad(), wanted[i].grad().to(at::kBFloat16).to(at::kFloat)), "a gradient");
      plain.zero_grad();
      model.zero_grad();
    }
  });
}

TEST(Codec, OneOfOnesOwnTrainsWithAQuarterOfTheBytes) {
  run_ranks(4, [](World& world) {
    const auto train = [&](std::shared_ptr<const Codec> codec, int64_t& gathered) {
      auto model = fully_shard(world, make_learner("gpt2"),
                               {.wrap = by_size(200), .gather_codec = codec, .reduce_codec = codec});
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      double first = 0, last = 0;
      for (int step = 0; step < 30; ++step) {
        const at::Tensor loss = model(model.module().batch(world.rank()));
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        (step == 0 ? first : last) = loss.item<double>();
      }
      gathered = bytes_of(model, "all_gather");
      return std::pair(first, last);
    };
    int64_t whole = 0, coded = 0;
    const auto [first, last] = train(nullptr, whole);
    const auto [coded_first, coded_last] = train(std::make_shared<Int8>(), coded);
    require(coded_first > 0.95 * first && coded_first < 1.05 * first, "starts alike");
    require(last < 0.97 * first && coded_last < 1.05 * last,
            "learns to " + std::to_string(coded_last) + ", not to " + std::to_string(last));
    require(4 * coded < 11 * whole / 10, std::to_string(coded) + " bytes of " + std::to_string(whole));
  });
}

TEST(Codec, OnAHybridMeshToo) {
  run_ranks(4, [](World& world) {
    auto model = fully_shard(world, make_learner("mlp"),
                             {.wrap = by_size(200),
                              .strategy = Strategy::hybrid_shard,
                              .shard_size = 2,
                              .gather_codec = cast_codec(at::kHalf),
                              .reduce_codec = cast_codec(at::kHalf)});
    train_sharded(model, world, 5, Optim::adamw);
    for (const auto& [name, value] : state_of(model)) require(value.isfinite().all().item<bool>(), name);
  });
}

}  // namespace
}  // namespace fsdp::testing
