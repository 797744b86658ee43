// Promise: no memory is read, written or given back while a stream may still use it, however long anything
// takes. See Note [Races of the toy device].
#include <fsdp/checkpoint.h>
#include <gmock/gmock.h>

#include <functional>

#include "behaviour/toy_device.h"
#include "behaviour/toy_races.h"
#include "support/gloo.h"
#include "support/temp_folder.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

class Races : public ::testing::Test {
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  }
};

ShardOptions race_options() { return {.wrap = by_size(200), .precision = bf16(), .comm = kToyComm}; }

void require_ordered(const std::string& name, const std::function<void()>& program) {
  const RaceCheck check;
  program();
  std::string races;
  for (const std::string& race : check.found()) races += "\n  " + race;
  require(races.empty(), name + " has no race:" + races);
}

// What kernels of the host did in a step that takes pointers.
void touch_step(const ShardedModel& model) {
  for (const at::Tensor& slice : model.parameters()) {
    if (!slice.is_cpu()) continue;
    toy_touch(slice, /*write=*/true, "the host's optimizer");
    if (slice.grad().defined()) toy_touch(slice.grad(), /*write=*/false, "the host's optimizer");
  }
}

struct Training {
  ShardOptions options = race_options();
  Optim optim = Optim::sgd;
  int steps = 4;
  int microbatches = 1;
  bool in_backward = false;
  std::function<void(Sharded<Learner>& model, int step)> between = {};
};

at::Tensor race_loss(Sharded<Learner>& model, const World& world, int64_t index) {
  return model(make_learner("mlp")->batch_on(index * world.size() + world.rank(), world.device()));
}

// The first step is on demand, the next ones follow its plan.
void train(const World& world, const Training& how) {
  auto model = fully_shard(world, make_learner("mlp"), how.options);
  const auto optimizer = make_optimizer(how.optim, model.parameters());
  if (how.in_backward) dynamic_cast<fsdp::AdamW&>(*optimizer).step_in_backward(model);
  for (int step = 0; step < how.steps; ++step) {
    for (int i = 1; i < how.microbatches; ++i) {
      const auto kept = model.no_sync();
      race_loss(model, world, step).backward();
    }
    race_loss(model, world, step).backward();
    if (how.between) how.between(model, step);
    optimizer->step();
    touch_step(model);
    optimizer->zero_grad(/*set_to_none=*/step % 2 == 0);
  }
}

void expect_ordered(const std::string& name, const std::vector<Training>& trainings) {
  for (const int ranks : {1, 2})
    on_toy_ranks(ranks, [&](World& world) {
      for (size_t i = 0; i < trainings.size(); ++i)
        require_ordered(name + " " + std::to_string(i), [&] { train(world, trainings[i]); });
    });
}

TEST_F(Races, NoneWithAnyStrategyPrecisionAndPrefetch) {
  std::vector<Training> trainings;
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
    for (const bool narrow : {true, false})
      for (const auto policy : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none})
        for (const int slots : {1, 2, 3}) {
          Training& one = trainings.emplace_back();
          one.options.strategy = strategy;
          one.options.precision = narrow ? bf16() : fp32();
          one.options.backward_prefetch = policy;
          one.options.limit_all_gathers = slots;
          one.steps = 3;
        }
  expect_ordered("strategy, precision, policy, slots", trainings);
}

TEST_F(Races, NoneInAccumulationClippingAndOptimizers) {
  std::vector<Training> trainings;
  for (const auto optim : {Optim::sgd, Optim::adamw, Optim::fused_adamw})
    trainings.push_back({.optim = optim, .microbatches = 3, .between = [](Sharded<Learner>& model, int) {
                           model.clip_grad_norm_(1e-2);
                         }});
  expect_ordered("accumulation", trainings);
}

TEST_F(Races, NoneWithOffload) {
  std::vector<Training> trainings;
  const auto add = [&](const Offload& offload, Optim optim) {
    for (const bool narrow : {true, false})
      for (const int microbatches : {1, 2}) {
        Training& one = trainings.emplace_back();
        one.options.offload = offload;
        one.options.precision = narrow ? bf16() : fp32();
        one.optim = optim;
        one.microbatches = microbatches;
      }
  };
  const Offload params{.params = true};
  for (const auto optim : {Optim::sgd, Optim::adamw, Optim::fused_adamw}) add(params, optim);
  for (const Offload& offload : {Offload{.gradients = true}, Offload{.optimizer = true},
                                 Offload{.params = true, .gradients = true, .optimizer = true}})
    add(offload, Optim::fused_adamw);
  expect_ordered("offload", trainings);
}

TEST_F(Races, NoneWithStepsInBackward) {
  Training one{.optim = Optim::fused_adamw, .in_backward = true};
  one.options.offload = {.params = true};
  Training wide = one;
  wide.options.precision = fp32();
  expect_ordered("steps in backward", {one, wide});
}

TEST_F(Races, NoneBetweenSteps) {
  const TempFolder folder;
  const std::vector<std::function<void(Sharded<Learner>&, int)>> programs{
      [](Sharded<Learner>& model, int step) {
        const auto whole = model.full_params(step % 2 == 0);
        for (const at::Tensor& param : model.module().parameters()) param.detach().mul_(0.5);
      },
      [](Sharded<Learner>& model, int) { (void)state_dict(model, {.offload = true}); },
      [](Sharded<Learner>& model, int) {
        model.on_gradient([](const std::string&, at::Tensor& slice) {
          slice.detach().sub_(slice.grad(), 0.01);
          slice.mutable_grad() = at::Tensor();
        });
      },
      [](Sharded<Learner>& model, int step) {
        model.unshard();
        if (step % 2 == 0) model.reshard();
      },
      [&](Sharded<Learner>& model, int step) {
        save(folder / "run", RunState{.model = model, .step = step});
      }};
  std::vector<Training> trainings;
  for (const auto& program : programs)
    for (const bool offload : {false, true})
      for (const bool narrow : {true, false}) {
        Training& one = trainings.emplace_back();
        one.options.offload.params = offload;
        one.options.precision = narrow ? bf16() : fp32();
        one.between = program;
      }
  expect_ordered("between steps", trainings);
}

// Three layers, of which the second runs on a stream of its own beside the third.
struct RacesTwoStreams : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const c10::impl::VirtualGuardImpl device(x.device().type());
    const c10::Stream main = device.getStream(x.device());
    if (!side) side = device.getStreamFromGlobalPool(x.device());
    const at::Tensor h = one(x);
    const at::Tensor y = at::empty({}, h.options());  // memory of the main stream
    c10::Event ready(x.device().type()), done(x.device().type());
    ready.record(main);
    ready.block(*side);
    {
      const c10::StreamGuard guard(*side);
      y.copy_(two(h).square().mean());
      device.recordDataPtrOnStream(h.storage().data_ptr(), *side);  // its backward reads it there
    }
    done.record(*side);
    const at::Tensor z = three(h).square().mean();
    done.block(main);
    return y + z;
  }
  torch::nn::Linear one = register_module("one", torch::nn::Linear(6, 6));
  torch::nn::Linear two = register_module("two", torch::nn::Linear(6, 6));
  torch::nn::Linear three = register_module("three", torch::nn::Linear(6, 6));
  std::optional<c10::Stream> side;
};

TEST_F(Races, NoneInAModelOfTwoStreams) {
  for (const int ranks : {1, 2})
    on_toy_ranks(ranks, [](World& world) {
      for (const int slots : {1, 2})
        require_ordered("two streams", [&] {
          ShardOptions options = race_options();
          options.wrap = by_type<torch::nn::LinearImpl>();
          options.limit_all_gathers = slots;
          auto model = fully_shard(world, std::make_shared<RacesTwoStreams>(), options);
          const at::NoGradGuard no_grad;
          for (int step = 0; step < 4; ++step) model(torch::ones({3, 6}).to(world.device()));
        });
    });
}

TEST_F(Races, NoneInBackwardsOfTwoStreams) {
  for (const int ranks : {1, 2})
    on_toy_ranks(ranks, [](World& world) {
      for (const bool offload : {false, true})
        require_ordered(offload ? "two streams, offload" : "two streams", [&] {
          ShardOptions options = race_options();
          options.wrap = by_type<torch::nn::LinearImpl>();
          options.offload.params = offload;
          auto model = fully_shard(world, std::make_shared<RacesTwoStreams>(), options);
          fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
          for (int step = 0; step < 4; ++step) {
            model(torch::ones({3, 6}).to(world.device())).backward();
            optimizer.step();
            optimizer.zero_grad();
          }
        });
    });
}

// The checker itself.

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Bytes = HappensBefore::Bytes;

TEST(RacesChecker, SeesAnAccessThatNobodyWaitedFor) {
  HappensBefore model;
  model.access(1, {0, 100}, true, "fill");
  model.access(2, {99, 120}, false, "read");
  EXPECT_THAT(model.races(), ElementsAre("fill on stream 1, then read on stream 2"));
}

TEST(RacesChecker, OrdersStreamsByEvents) {
  HappensBefore model;
  model.access(1, {0, 100}, true, "fill");
  const auto filled = model.record(1);
  model.access(1, {0, 50}, true, "fill again");
  model.wait(2, filled);
  model.access(2, {50, 100}, false, "read the rest");
  EXPECT_THAT(model.races(), IsEmpty());
  model.access(2, {49, 51}, false, "read more");
  EXPECT_THAT(model.races(), ElementsAre("fill again on stream 1, then read more on stream 2"));
}

TEST(RacesChecker, ReadersDoNotRaceButAWriterMustWaitForAll) {
  HappensBefore model;
  for (const auto stream : {1, 2, 3}) model.access(stream, {0, 8}, false, "read");
  EXPECT_THAT(model.races(), IsEmpty());
  model.wait(3, model.record(1));
  model.access(3, {0, 8}, true, "write");
  EXPECT_THAT(model.races(), ElementsAre("read on stream 2, then write on stream 3"));
}

// What the host knows comes before all that it issues; other streams' work it does not know of.
TEST(RacesChecker, TheHostOrdersWhatItHasWaitedFor) {
  HappensBefore model;
  model.access(1, {0, 8}, true, "download");
  model.access(HappensBefore::kHost, {0, 8}, false, "too early");
  model.wait(HappensBefore::kHost, model.record(1));
  model.access(HappensBefore::kHost, {0, 8}, true, "update");
  model.access(2, {0, 8}, false, "upload");
  EXPECT_THAT(model.races(), ElementsAre("download on stream 1, then too early on the host"));
}

TEST(RacesChecker, AFreeIsForTheStreamThatAllocated) {
  HappensBefore model;
  model.access(1, {0, 8}, true, "allocation");
  model.wait(2, model.record(1));
  model.access(2, {0, 8}, false, "read");
  HappensBefore recorded = model;
  model.free(1, {0, 8});
  EXPECT_THAT(model.races(), ElementsAre("read on stream 2, then free on stream 1"));
  recorded.free(1, {0, 8}, {2});
  recorded.access(3, {0, 8}, true, "the next owner");
  EXPECT_THAT(recorded.races(), IsEmpty());
}

c10::Stream other_stream(const World& world) {
  return c10::impl::VirtualGuardImpl(world.device().type()).getStreamFromGlobalPool(world.device());
}

std::string only_race(const RaceCheck& check) {
  const auto races = check.found();
  return races.size() == 1 ? races.front() : std::to_string(races.size()) + " races";
}

TEST_F(Races, AreSeenBetweenOperatorsOfTheDevice) {
  on_toy_ranks(1, [](World& world) {
    const RaceCheck check;
    const at::Tensor x = torch::ones({8}).to(world.device());
    c10::Event ready(world.device().type());
    ready.record(c10::impl::VirtualGuardImpl(world.device().type()).getStream(world.device()));
    const c10::Stream side = other_stream(world);
    ready.block(side);
    x.mul_(2);
    const c10::StreamGuard guard(side);
    (void)x.sum().item<float>();  // blocks the host, not the stream
    require_words(only_race(check), "aten::mul on stream");
    require_words(only_race(check), "then aten::sum");
  });
}

TEST_F(Races, AreSeenWhereMemoryIsGivenBackEarly) {
  on_toy_ranks(1, [](World& world) {
    const RaceCheck check;
    at::Tensor x = torch::ones({8}).to(world.device());
    c10::Event ready(world.device().type());
    ready.record(c10::impl::VirtualGuardImpl(world.device().type()).getStream(world.device()));
    const c10::Stream side = other_stream(world);
    ready.block(side);
    const c10::StreamGuard guard(side);
    const at::Tensor y = x * 2;
    x = at::Tensor();
    require_words(only_race(check), "then free on stream");
  });
}

TEST_F(Races, AreSeenInPinnedMemory) {
  on_toy_ranks(1, [](World& world) {
    const at::Tensor host = at::ones({8}, at::TensorOptions().pinned_memory(true));
    const at::Tensor there = at::empty({8}, at::TensorOptions().device(world.device()));
    const auto after = [&](bool waits, const std::function<void()>& touches) {
      const RaceCheck check;
      there.copy_(host, /*non_blocking=*/true);
      if (waits)
        c10::impl::VirtualGuardImpl(world.device().type())
            .synchronizeStream(c10::impl::VirtualGuardImpl(world.device().type()).getStream(world.device()));
      touches();
      return check.found().empty() ? std::string() : only_race(check);
    };
    const auto adds = [&] { host.add_(1); };
    const auto points = [&] { toy_touch(host, true, "a kernel"); };
    require_words(after(false, adds), "copy_ on stream");
    require_words(after(false, adds), "then aten::add_ on the host");
    require_words(after(false, points), "then a kernel on the host");
    require(after(false, [&] { (void)host.sum(); }).empty(), "two that read");
    require(after(true, adds).empty() && after(true, points).empty(), "the host has waited");
  });
}

TEST_F(Races, AreSeenWhereACollectiveIsNotWaitedFor) {
  on_toy_ranks(2, [](World& world) {
    Comm comm = Comm::create(world, kToyComm);
    const RaceCheck check;
    const at::Tensor shard = torch::ones({4}).to(world.device());
    const at::Tensor slot = at::empty({8}, shard.options());
    Work work = comm.all_gather(slot, shard, "a shard");
    (void)slot.sum();
    require_words(only_race(check), "all_gather on stream");
    work.wait();
    (void)slot.sum();
    require_words(only_race(check), "all_gather on stream");
  });
}

}  // namespace
}  // namespace fsdp::testing
