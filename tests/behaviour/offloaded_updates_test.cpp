// Promise: updates of parameters in host memory are done beside other work, and nobody sees them half done.
#include <fsdp/checkpoint.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <utility>

#include "behaviour/offloaded.h"
#include "support/slow_files.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

class OffloadedUpdates : public Offloaded {};

// A weight that takes a while to update.
struct BigLinear : torch::nn::Module {
  static constexpr int64_t kWidth = 1 << 21;
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight = register_parameter("weight", at::zeros({kWidth}));
};

// Its first layer runs before and after the second.
struct TwiceNet : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return one(two(one(x))); }
  torch::nn::Linear one = register_module("one", torch::nn::Linear(16, 16));
  torch::nn::Linear two = register_module("two", torch::nn::Linear(16, 16));
};

// step() returns before parameters are written. Whoever reads them, or moments, sees the new ones.
TEST_F(OffloadedUpdates, WhoReadsAPromisedUpdateWaitsForIt) {
  on_toy_ranks(1, [](World& world) {
    auto model = fully_shard(world, std::make_shared<BigLinear>(), offload_options(true, false));
    fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1.0).weight_decay(0));
    const at::Tensor x = at::ones({1, BigLinear::kWidth}).to(world.device());
    for (int step = 0; step < 5; ++step) {
      const auto before = model.parameters().front().clone();
      model(x).sum().backward();
      const at::Tensor grad = model.parameters().front().grad();
      optimizer.step();
      if (step % 2 == 0) optimizer.zero_grad();
      if (step % 3 == 1) {
        const double wanted = (step + 1) * std::sqrt(static_cast<double>(BigLinear::kWidth));
        const double found = model.parameter_norms().cpu().item<double>();
        require(std::abs(found - wanted) < 1e-2 * wanted, "the norm is of other values");
      }
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *optimizer.state().at(model.parameters().front().unsafeGetTensorImpl()));
      const at::Tensor moment = state.exp_avg().clone();
      const at::Tensor moved = before - model.parameters().front();
      require(at::allclose(moved, at::ones_like(moved), 1e-3, 1e-3), "the update was not seen");
      require(at::allclose(moment, at::full_like(moment, 1 - std::pow(0.9, step + 1)), 1e-4, 1e-4),
              "the moment was not seen");
      if (step % 2 == 1) grad.zero_();  // waits until it was read
      optimizer.zero_grad();
    }
  });
}

TEST_F(OffloadedUpdates, StepsInBackwardHaveTheBitsOfStepsAfterIt) {
  for (const int ranks : {1, 2})
    on_toy_ranks(ranks, [](World& world) {
      for (const bool narrow : {true, false}) {
        const auto train = [&](bool in_backward) {
          return after(
              world,
              [&](Sharded<Learner>& model, torch::optim::Optimizer& optimizer, const World&) {
                if (in_backward) dynamic_cast<fsdp::AdamW&>(optimizer).step_in_backward(model);
                for (int64_t step = 0; step < kOffloadSteps; ++step) {
                  offload_loss(model, world, step).backward();
                  for (const at::Tensor& slice : model.parameters())
                    require(slice.grad().defined() != in_backward, "who has the gradient?");
                  optimizer.step();
                  optimizer.zero_grad();
                }
              },
              offload_options(true, narrow));
        };
        require_same(train(true), train(false));
      }
    });
}

// A block that runs twice is gathered twice in backward: its update waits for the end.
TEST_F(OffloadedUpdates, AUnitThatIsGatheredAgainIsUpdatedWhenTheBackwardEnds) {
  on_toy_ranks(1, [](World& world) {
    const auto train = [&](bool in_backward) {
      torch::manual_seed(2);
      auto model = fully_shard(world, std::make_shared<TwiceNet>(),
                               {.wrap = by_type<torch::nn::LinearImpl>(),
                                .precision = bf16(),
                                .limit_all_gathers = 1,
                                .offload = {.params = true},
                                .comm = kToyComm});
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      if (in_backward) optimizer.step_in_backward(model);
      for (int step = 0; step < kOffloadSteps; ++step) {
        model(at::ones({2, 16}).to(world.device()) * (step + 1)).sum().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      return host_state(state_of(model));
    };
    require_same(train(true), train(false));
  });
}

// An archive reads memory without an operator.
TEST_F(OffloadedUpdates, AnArchiveHasThemAll) {
  on_toy_ranks(1, [](World& world) {
    auto model = fully_shard(world, std::make_shared<BigLinear>(), offload_options(true, false));
    fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1.0));
    const at::Tensor x = at::ones({1, BigLinear::kWidth}).to(world.device());
    const auto archive = [&] {
      std::ostringstream out;
      torch::save(optimizer, out);
      return out.str();
    };
    for (int step = 0; step < 4; ++step) {
      model(x).sum().backward();
      optimizer.step();
      const std::string at_once = archive();
      model.parameters().front().sum().item<float>();  // waits
      require(at_once == archive(), "the archive has moments that are half updated");
      optimizer.zero_grad();
    }
  });
}

TEST_F(OffloadedUpdates, AnOptimizerThatStepsInBackwardMayBeMoved) {
  on_toy_ranks(1, [](World& world) {
    const auto train = [&](bool moved) {
      auto model = fully_shard(world, make_learner("mlp"), offload_options(true));
      auto first = std::make_unique<fsdp::AdamW>(model.parameters(), fsdp::AdamWOptions(1e-2));
      first->step_in_backward(model);
      offload_loss(model, world, 0).backward();
      if (moved) {
        fsdp::AdamW second(std::move(*first));
        first = std::make_unique<fsdp::AdamW>(model.parameters(), fsdp::AdamWOptions(1e-2));
        *first = std::move(second);
      }
      require(first->steps_in_backward(), "it does not step any more");
      for (int64_t step = 1; step < kOffloadSteps; ++step) {
        offload_loss(model, world, step).backward();
        first->step();
      }
      return host_state(state_of(model));
    };
    require_same(train(true), train(false));
  });
}

// What is saved beside training is of one step, though the next is promised before it is written. Nothing is
// staged: it is read from where the updates write, and the disk is slow.
TEST_F(OffloadedUpdates, ASaveInTheBackgroundIsOfOneStep) {
  const TempFolder folder;
  SlowFiles files;
  files.milliseconds = 100;
  on_toy_ranks(1, [&](World& world) {
    auto model = fully_shard(world, std::make_shared<BigLinear>(), offload_options(true, false));
    fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1.0).weight_decay(0));
    optimizer.step_in_backward(model);
    const at::Tensor x = at::ones({1, BigLinear::kWidth}).to(world.device());
    BackgroundSaver saver(folder / "run", {}, /*staging_bytes=*/0, files);
    model(x).sum().backward();
    const State wanted = host_state(state_of(model));
    saver.save(RunState{.model = model, .optimizer = &optimizer, .step = 1});
    for (int step = 1; step < kOffloadSteps; ++step) model(x).sum().backward();
    saver.wait();
    RunState run{.model = model, .optimizer = &optimizer};
    load(folder / "run", run);
    require_same(host_state(state_of(model)), wanted);
  });
}

// A parameter that no loss needed keeps its value and its moments.
TEST_F(OffloadedUpdates, WhatHasNoGradientIsLeftAlone) {
  on_toy_ranks(1, [](World& world) {
    const auto train = [&](bool in_backward) {
      torch::manual_seed(3);
      auto net = std::make_shared<TwiceNet>();
      auto model = fully_shard(world, net, {.offload = {.params = true}, .comm = kToyComm});
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2).weight_decay(0.5));
      if (in_backward) optimizer.step_in_backward(model);
      for (int step = 0; step < 3; ++step) {
        model.run([&](TwiceNet& its) {
               return its.one(at::ones({2, 16}).to(world.device()));
             })
            .sum()
            .backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      return host_state(state_of(model));
    };
    require_same(train(true), train(false));
  });
}

// Of which updates know nothing: it is refused whenever it comes, and nothing is lost in silence.
TEST_F(OffloadedUpdates, APenaltyOverSlicesIsRefusedInBackward) {
  on_toy_ranks(1, [](World& world) {
    for (const bool last : {false, true}) {
      auto model = fully_shard(world, make_learner("mlp"), offload_options(true, false));
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      optimizer.step_in_backward(model);
      for (int64_t step = 0; step < 3; ++step) offload_loss(model, world, step).backward();
      const auto penalty = [&] { return 0.1 * model.parameters().front().square().sum().to(world.device()); };
      std::string words = "not refused";
      try {
        if (last) {
          const at::Tensor first = penalty();  // its nodes are older, so they run last
          (offload_loss(model, world, 3) + first).backward();
        } else {
          (offload_loss(model, world, 3) + penalty()).backward();
        }
      } catch (const c10::Error& error) {
        words = error.what_without_backtrace();
      }
      require(words.find("a penalty over slices") != std::string::npos, words);
      model.zero_grad();
      offload_loss(model, world, 4).backward();
    }
  });
}

// An operator updates what the host's kernel does not take, and its neighbours in the unit stay as new.
TEST_F(OffloadedUpdates, AGradientThatLiesOtherwiseIsUsed) {
  on_toy_ranks(1, [](World& world) {
    const auto losses = [&](bool strided) {
      ShardOptions options = offload_options(true);
      options.wrap = whole_model();
      auto model = fully_shard(world, make_learner("mlp"), options);
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-1));
      std::vector<float> all;
      for (int64_t step = 0; step < kOffloadSteps; ++step) {
        const at::Tensor loss = offload_loss(model, world, 0);
        loss.backward();
        at::Tensor& grad = model.parameters()[1].mutable_grad();
        if (strided) grad = at::empty_strided(grad.sizes(), {2}, grad.options()).copy_(grad);
        optimizer.step();
        optimizer.zero_grad();
        all.push_back(loss.item<float>());
      }
      return all;
    };
    require(losses(true) == losses(false), "the device computed with an old value");
  });
}

// The units of an inner model keep their own promises, which end before the units do.
// A tensor of the program's own may be written as soon as step() has returned.
TEST_F(OffloadedUpdates, AGradientOfTheProgramsOwnIsReadBeforeStepReturns) {
  on_toy_ranks(1, [](World& world) {
    auto model = fully_shard(world, std::make_shared<BigLinear>(), offload_options(true, false));
    fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1.0).weight_decay(0));
    const at::Tensor x = at::ones({1, BigLinear::kWidth}).to(world.device());
    for (int step = 0; step < 4; ++step) {
      model(x).sum().backward();
      at::Tensor& grad = model.parameters().front().mutable_grad();
      const at::Tensor own = grad * 0.5;
      grad = own;
      const at::Tensor before = model.parameters().front().clone();
      optimizer.step();
      own.zero_();
      const at::Tensor moved = before - model.parameters().front();
      require(at::allclose(moved, at::ones_like(moved), 1e-3, 1e-3),
              "the update read what was written later");
      optimizer.zero_grad();
    }
  });
}

TEST_F(OffloadedUpdates, AnInnerModelMayGoWithUpdatesThatArePromised) {
  on_toy_ranks(1, [](World& world) {
    for (int round = 0; round < 3; ++round) {
      auto outer = std::make_shared<torch::nn::SequentialImpl>();
      outer->push_back(std::make_shared<BigLinear>());
      outer->push_back(std::make_shared<BigLinear>());
      auto inner =
          std::make_optional(fully_shard(world, outer->ptr<BigLinear>(1), offload_options(true, false)));
      auto model = fully_shard(world, outer, offload_options(true, false));
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1.0).weight_decay(0));
      optimizer.step_in_backward(model);
      const at::Tensor x = at::ones({1, BigLinear::kWidth}).to(world.device());
      for (int step = 0; step < 2; ++step) model(x).sum().backward();
      if (round == 1) inner.reset();
    }
  });
}

// The copy that is uploaded is renewed in every dtype.
TEST_F(OffloadedUpdates, CopiesInFp16AreRenewed) {
  on_toy_ranks(1, [](World& world) {
    const auto losses = [&](bool offloaded, bool in_backward = false) {
      ShardOptions options = offload_options(offloaded, false);
      options.precision = fp16();
      auto model = fully_shard(world, make_learner("mlp"), options);
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      if (in_backward) optimizer.step_in_backward(model);
      std::vector<float> all;
      for (int64_t step = 0; step < kOffloadSteps; ++step) {
        const at::Tensor loss = offload_loss(model, world, 0);
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        all.push_back(loss.item<float>());
      }
      return all;
    };
    const auto found = losses(true);
    require(found == losses(false), "other losses");
    require(found == losses(true, /*in_backward=*/true), "other losses of steps in backward");
    require(found.front() != found.back(), "the device never saw an update");
  });
}

}  // namespace
}  // namespace fsdp::testing
