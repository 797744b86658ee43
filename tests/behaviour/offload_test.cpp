// Promise: with Offload the shards, gradients and moments of a model are in host memory, and it trains to the
// same bits.
#include <fsdp/checkpoint.h>
#include <gtest/gtest.h>

#include "behaviour/offloaded.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

struct OffloadCase {
  int ranks;
  Strategy strategy;
  Optim optim;
  bool bf16;
  Offload offload;
};

std::vector<OffloadCase> offload_cases() {
  std::vector<OffloadCase> all;
  const Offload params{.params = true};
  for (const int ranks : {1, 2}) {
    for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
      for (const bool bf16 : {false, true}) all.push_back({ranks, strategy, Optim::sgd, bf16, params});
    for (const auto optim : {Optim::adamw, Optim::fused_adamw})
      for (const bool bf16 : {false, true}) all.push_back({ranks, Strategy::full_shard, optim, bf16, params});
    for (const Offload& offload : {Offload{.gradients = true}, Offload{.optimizer = true},
                                   Offload{.gradients = true, .optimizer = true},
                                   Offload{.params = true, .gradients = true, .optimizer = true}})
      all.push_back({ranks, Strategy::full_shard, Optim::fused_adamw, true, offload});
  }
  return all;
}

std::string offload_name(const ::testing::TestParamInfo<OffloadCase>& info) {
  const auto& [ranks, strategy, optim, bf16, offload] = info.param;
  return "W" + std::to_string(ranks) + (bf16 ? "_bf16_" : "_fp32_") +
         std::to_string(static_cast<int>(strategy)) + "_" + std::to_string(static_cast<int>(optim)) +
         (offload.params ? "_params" : "") + (offload.gradients ? "_gradients" : "") +
         (offload.optimizer ? "_optimizer" : "");
}

class OffloadedTraining : public Offloaded, public ::testing::WithParamInterface<OffloadCase> {};

TEST_P(OffloadedTraining, HasTheBitsOfTheCpu) {
  const OffloadCase& one = GetParam();
  on_toy_ranks(one.ranks, [&](World& world) {
    const State wanted = train_plain(*make_learner("mlp"), one.ranks, kOffloadSteps, one.optim,
                                     one.bf16 ? at::kBFloat16 : at::kFloat);
    auto model = fully_shard(world, make_learner("mlp"),
                             {.wrap = by_size(200),
                              .strategy = one.strategy,
                              .precision = one.bf16 ? bf16() : fp32(),
                              .offload = one.offload,
                              .comm = kToyComm});
    train_sharded(model, world, kOffloadSteps, one.optim);
    for (const at::Tensor& slice : model.parameters())
      require(slice.is_cpu() == one.offload.params, "a slice on " + slice.device().str());
    State found = state_of(model);
    for (auto& [name, value] : found) {
      require(value.device() == world.device(), name + " is computed with on " + value.device().str());
      value = value.cpu();
    }
    require_same(found, wanted);
    require(model.memory_stats().host_bytes > 0, "no host memory");
    require((model.memory_stats().parameter_bytes == 0) == one.offload.params, "shards on the device");
  });
}

INSTANTIATE_TEST_SUITE_P(Toy, OffloadedTraining, ::testing::ValuesIn(offload_cases()), offload_name);

void require_same_offloaded(int ranks, const OffloadProgram& program, Optim optim = Optim::fused_adamw) {
  on_toy_ranks(ranks, [&](World& world) {
    for (const bool narrow : {true, false})
      require_same(after(world, program, offload_options(true, narrow), optim),
                   after(world, program, offload_options(false, narrow), optim));
  });
}

TEST_F(Offloaded, AccumulationClippingAndEvaluationChangeNoBits) {
  for (const int ranks : {1, 2})
    for (const auto optim : {Optim::fused_adamw, Optim::sgd})
      require_same_offloaded(
          ranks,
          [](Sharded<Learner>& model, torch::optim::Optimizer& optimizer, const World& world) {
            for (int64_t step = 0; step < kOffloadSteps; ++step) {
              if (step % 2 == 0) {
                const auto kept = model.no_sync();
                offload_loss(model, world, 3 * step).backward();
              }
              offload_loss(model, world, 3 * step + 1).backward();
              offload_loss(model, world, 3 * step + 2).backward();
              model.clip_grad_norm_(step % 3 == 0 ? 1e-2 : 1e3);
              (void)model.gradient_norms();
              optimizer.step();
              (void)model.parameter_norms();
              const at::NoGradGuard no_grad;
              offload_loss(model, world, 0);
              step % 2 == 0 ? optimizer.zero_grad() : optimizer.zero_grad(/*set_to_none=*/false);
            }
          },
          optim);
}

TEST_F(Offloaded, WhatDoesNotFitIsRefusedInWords) {
  on_toy_ranks(1, [](World& world) {
    const auto refusal = [](const auto& what) -> std::string {
      try {
        what();
      } catch (const c10::Error& error) {
        return error.what_without_backtrace();
      }
      return "not refused";
    };
    const auto has = [](const std::string& text, const std::string& part) {
      require(text.find(part) != std::string::npos, text);
    };
    auto plain = fully_shard(world, make_learner("mlp"), offload_options(false));
    fsdp::AdamW plain_optimizer(plain.parameters(), fsdp::AdamWOptions(1e-2));
    has(refusal([&] { plain_optimizer.step_in_backward(plain); }), "set ShardOptions::offload.params");
    auto model = fully_shard(world, make_learner("mlp"), offload_options(true));
    fsdp::AdamW few({model.parameters().front()}, fsdp::AdamWOptions(1e-2));
    has(refusal([&] { few.step_in_backward(model); }), "is not in the optimizer");
    {
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      optimizer.step_in_backward(model);
      has(refusal([&] { model.clip_grad_norm_(1.0); }), "clip_grad_norm_ with AdamW::step_in_backward()");
      has(refusal([&] { model.get_total_norm(); }), "get_total_norm with AdamW::step_in_backward()");
      has(refusal([&] { optimizer.step_clipped(torch::ones({}), 1.0); }), "with step_in_backward()");
      has(refusal([&] { (void)model.no_sync(); }), "no_sync() with AdamW::step_in_backward()");
      has(refusal([&] { (void)model.keep_gathered(); }), "keep_gathered() with AdamW::step_in_backward()");
      auto other = fully_shard(world, make_learner("mlp"), offload_options(true));
      has(refusal([&] { optimizer.step_in_backward(other); }), "Make an optimizer for each");
      GradScaler scaler(world, {.comm = kToyComm});
      has(refusal([&] { scaler.step(optimizer); }), "GradScaler with AdamW::step_in_backward()");
    }
    model.clip_grad_norm_(1.0);  // the tie ended with the optimizer
    auto first = std::make_unique<fsdp::AdamW>(model.parameters(), fsdp::AdamWOptions(1e-2));
    first->step_in_backward(model);
    auto second = std::make_unique<fsdp::AdamW>(model.parameters(), fsdp::AdamWOptions(1e-2));
    second->step_in_backward(model);
    first = nullptr;  // the second has the model
    const at::Tensor before = model.parameters().front().clone();
    offload_loss(model, world, 0).backward();
    require(!model.parameters().front().equal(before), "the second optimizer steps");
    has(refusal([&] { model.clip_grad_value_(1.0); }), "clip_grad_value_ with AdamW::step_in_backward()");
    second = nullptr;
    {
      const auto kept = model.no_sync();
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      has(refusal([&] { optimizer.step_in_backward(model); }), "inside no_sync()");
    }
    {
      const auto kept = model.keep_gathered();
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      has(refusal([&] { optimizer.step_in_backward(model); }), "inside keep_gathered()");
    }
    const auto of_a_model_with = [&](const auto& change) {
      ShardOptions changed = offload_options(true);
      change(changed);
      auto one = fully_shard(world, make_learner("mlp"), changed);
      fsdp::AdamW optimizer(one.parameters(), fsdp::AdamWOptions(1e-2));
      return refusal([&] { optimizer.step_in_backward(one); });
    };
    has(of_a_model_with([](ShardOptions& changed) { changed.check_gradients = true; }), "check_gradients");
    has(of_a_model_with([](ShardOptions& changed) {
          changed.precision.reduce = at::kBFloat16;
          changed.precision.keep_low_precision_grads = true;
        }),
        "turn keep_low_precision_grads off");
    const auto options = [] {
      ShardOptions both = offload_options(true);
      both.gather_codec = cast_codec(at::kBFloat16);
      return both;
    };
    has(refusal([&] { fully_shard(world, make_learner("mlp"), options()); }), "gather_codec");
  });
}

// Saved from host memory, loaded on a device, and the other way round.
TEST_F(Offloaded, CheckpointsDoNotKnowWhereAShardWas) {
  const TempFolder folder;
  on_toy_ranks(2, [&](World& world) {
    for (const bool from : {true, false}) {
      const std::string path = folder / (from ? "host" : "device");
      auto saved = fully_shard(world, make_learner("mlp"), offload_options(from));
      fsdp::AdamW first(saved.parameters(), fsdp::AdamWOptions(1e-2));
      for (int64_t step = 0; step < 3; ++step) {
        offload_loss(saved, world, step).backward();
        first.step();
        first.zero_grad();
      }
      save(path, RunState{.model = saved, .optimizer = &first, .step = 3});
      auto loaded = fully_shard(world, make_learner("mlp"), offload_options(!from));
      fsdp::AdamW second(loaded.parameters(), fsdp::AdamWOptions(1e-2));
      offload_loss(loaded, world, 7).backward();
      second.step();
      second.zero_grad();
      RunState run{.model = loaded, .optimizer = &second};
      load(path, run);
      require_same(host_state(state_of(loaded)), host_state(state_of(saved)));
      offload_loss(loaded, world, 3).backward();
      second.step();
      offload_loss(saved, world, 3).backward();
      first.step();
      require_same(host_state(state_of(loaded)), host_state(state_of(saved)));
    }
  });
}

TEST_F(Offloaded, StateDictsHaveWholeMoments) {
  on_toy_ranks(2, [](World& world) {
    const auto moments = [&](bool offloaded) {
      auto model = fully_shard(world, make_learner("mlp"), offload_options(offloaded, false));
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      offload_loss(model, world, 0).backward();
      optimizer.step();
      const StateDict whole = optimizer_state_dict(model, optimizer);
      State all;
      for (const auto& item : whole) all[item.key()] = item.value().boxes.front().tensor.cpu().clone();
      optimizer.state().clear();
      load_optimizer_state_dict(model, optimizer, whole);
      offload_loss(model, world, 1).backward();
      optimizer.step();
      for (const auto& [name, value] : host_state(state_of(model))) all[name] = value;
      return all;
    };
    require_same(moments(true), moments(false));
  });
}

// A run that fits because its moments are on the host fits after it was loaded.
TEST_F(Offloaded, LoadedMomentsLieWhereNewOnesDo) {
  const TempFolder folder;
  on_toy_ranks(2, [&](World& world) {
    ShardOptions options = offload_options(false, false);
    options.offload.optimizer = true;
    const auto check = [](const fsdp::AdamW& optimizer) {
      require(!optimizer.state().empty(), "it has moments");
      for (const auto& [param, state] : optimizer.state())
        require(static_cast<torch::optim::AdamWParamState&>(*state).exp_avg().is_cpu(), "on the device");
    };
    auto saved = fully_shard(world, make_learner("mlp"), options);
    fsdp::AdamW first(saved.parameters(), fsdp::AdamWOptions(1e-2));
    offload_loss(saved, world, 0).backward();
    first.step();
    check(first);
    save(folder / "run", RunState{.model = saved, .optimizer = &first, .step = 1});
    auto loaded = fully_shard(world, make_learner("mlp"), options);
    fsdp::AdamW second(loaded.parameters(), fsdp::AdamWOptions(1e-2));
    RunState run{.model = loaded, .optimizer = &second};
    load(folder / "run", run);
    check(second);
    fsdp::AdamW third(loaded.parameters(), fsdp::AdamWOptions(1e-2));
    load_optimizer_state_dict(loaded, third, optimizer_state_dict(saved, first));
    check(third);
  });
}

TEST_F(Offloaded, ReproducibleModeHasTheSameBits) {
  on_toy_ranks(1, [](World& world) {
    const auto hash = [&](bool offloaded) {
      ShardOptions options = offload_options(offloaded, false);
      options.reproducible = Reproducible{.microbatches = 2};
      auto model = fully_shard(world, make_learner("mlp"), options);
      torch::optim::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      for (int64_t step = 0; step < 3; ++step) {
        for (int64_t i = world.rank(); i < 2; i += world.size())
          model(make_learner("mlp")->batch_on(2 * step + i, world.device())).backward();
        model.clip_grad_norm_(1e-2);
        optimizer.step();
        optimizer.zero_grad();
      }
      return model.state_hash();
    };
    require(hash(true) == hash(false), "another hash");
  });
}

}  // namespace
}  // namespace fsdp::testing
