// Promise: update_average() keeps the exponential moving average of the whole parameters, on any number of
// ranks, in fp32 where the model is in bf16.
#include <gmock/gmock.h>

#include "behaviour/small_net.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

constexpr double kDecay = 0.9;

// The same recurrence over whole parameters, in fp64.
class PlainAverage {
 public:
  explicit PlainAverage(Sharded<NetImpl>& model) { move(model, 0.0); }
  void move(Sharded<NetImpl>& model, double decay) {
    for (const auto& [name, value] : state_of(model)) {
      at::Tensor& average = values_[name];
      const at::Tensor whole = value.to(at::kDouble);
      average = average.defined() ? average * decay + whole * (1 - decay) : whole.clone();
    }
  }
  // The largest difference from the average in `model`.
  double distance(Sharded<NetImpl>& model) const {
    double most = 0;
    for (const auto& [name, value] : state_of(model))
      most = std::max(most, (value.to(at::kDouble) - values_.at(name)).abs().max().item<double>());
    return most;
  }

 private:
  State values_;
};

void train_step(Sharded<NetImpl>& model, torch::optim::Optimizer& optimizer, int64_t batch) {
  loss_of(model(net_batch(batch))).backward();
  optimizer.step();
  optimizer.zero_grad();
}

// Trains a few steps and follows them. Returns the distance from the plain average.
double follow(const World& world, const ShardOptions& options, const ShardOptions& average_options) {
  auto model = fully_shard(world, make_same_net(), options);
  auto average = fully_shard(world, make_net(), average_options);
  update_average(average, model, 0.0);
  PlainAverage plain(model);
  require(plain.distance(average) == 0, "a decay of 0 copies");
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    train_step(model, optimizer, step * world.size() + world.rank());
    update_average(average, model, kDecay);
    plain.move(model, kDecay);
  }
  return plain.distance(average);
}

TEST(Average, IsThatOfTheWholeParameters) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](World& world) {
      for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
        const ShardOptions options{.wrap = by_type<BlockImpl>(), .strategy = strategy};
        require(follow(world, options, options) < 1e-6, "fp32 rounding of values below 1");
      }
    });
}

// In bf16 the small moves of an average would be rounded away.
TEST(Average, IsInFp32WhereTheModelIsInBf16) {
  run_ranks(2, [](World& world) {
    const ShardOptions options{.wrap = by_type<BlockImpl>(), .precision = bf16_true()};
    ShardOptions wide = options;
    wide.precision = {.param = at::kBFloat16, .master = at::kFloat};
    require(follow(world, options, wide) < 1e-6, "fp32 rounding of values below 1");
  });
}

TEST(Average, CopiesBuffers) {
  run_ranks(2, [](World& world) {
    const auto make = [] {
      return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8));
    };
    auto model = fully_shard(world, make());
    auto average = fully_shard(world, make());
    model(net_batch(1)).sum().backward();
    update_average(average, model, kDecay);
    const at::Tensor mean = model.module().named_buffers()["1.running_mean"];
    require(mean.abs().max().item<double>() > 0, "the model has seen data");
    require(at::equal(average.module().named_buffers()["1.running_mean"], mean), "buffers are copied");
  });
}

TEST(Average, IsSavedAsAPartAndLoadedOnOtherRanks) {
  const TempFolder folder;
  State saved;
  const auto run_of = [&](World& world, bool load_it) {
    auto model = fully_shard(world, make_same_net());
    auto average = fully_shard(world, make_net());
    RunState run{.model = model, .parts = {{"average", {.model = average}}}};
    if (load_it) {
      load(folder.path(), run);
      require_same(state_of(average), saved);
      return;
    }
    update_average(average, model, 0.0);
    save(folder.path(), run);
    const State now = state_of(average);
    if (world.rank() == 0) saved = now;
  };
  run_ranks(2, [&](World& world) { run_of(world, false); });
  run_ranks(3, [&](World& world) { run_of(world, true); });
}

TEST(Average, RefusesOtherModelsShardsAndDecays) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_same_net());
    const auto refused = [&](const ShardedModel& average, double decay) {
      return refusal([&] { update_average(average, model, decay); });
    };
    auto same = fully_shard(world, make_net());
    require_words(refused(same, 1.0), "decay 1; it is at least 0 and less than 1");
    require_words(refused(same, -0.5), "decay -0.5");
    auto whole = fully_shard(world, make_net(), {.strategy = Strategy::no_shard});
    require_words(refused(whole, 0.5), "shard both with the same options");
    require_words(refused(fully_shard(world, torch::nn::Linear(6, 4)), 0.5), "the average 2");
  });
}

}  // namespace
}  // namespace fsdp::testing
