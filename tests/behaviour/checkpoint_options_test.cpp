// Promise: everything of a run is saved and comes back; what does not fit is told in full before anything
// changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <thread>

#include "behaviour/checkpoint_net.h"
#include "behaviour/layers_net.h"
#include "files/file_ops.h"

namespace fsdp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Sharded<MixedNet> make_net(const World& world, uint64_t seed = 3) {
  return fully_shard(world, std::make_shared<MixedNet>(seed), mixed_options());
}

template <class Optimizer>
void train(Sharded<MixedNet>& model, Optimizer& optimizer, const World& world, int64_t step) {
  model(model.module().batch(step * world.size() + world.rank())).backward();
  optimizer.step();
  optimizer.zero_grad();
}

TEST(CheckpointOptions, EverythingOfARunComesBack) {
  const TempFolder folder;
  for (const int to : {2, 3}) {
    run_ranks(2, [&](World& world) {
      auto model = make_net(world);
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.5));
      torch::optim::StepLR scheduler(optimizer, 2, 0.1);
      GradScaler scaler(world, {.init_scale = 1024});
      Sampler sampler(world, 40, {.seed = 3});
      for (int i = 0; i < 3; ++i) scheduler.step();
      scaler.update(256.0);
      sampler.next(5);
      save(folder / "run", {.model = model,
                            .optimizer = &optimizer,
                            .scheduler = &scheduler,
                            .scaler = &scaler,
                            .sampler = &sampler,
                            .step = 7,
                            .values = {{"best", std::numeric_limits<double>::infinity()},
                                       {"seen", int64_t{1} << 60},
                                       {"name", std::string("a \"quoted\" \n name")},
                                       {"on", true},
                                       {"table", torch::arange(5)}},
                            .model_config = R"({"heads": 4})"});
    });
    run_ranks(to, [&](World& world) {
      auto model = make_net(world, 99);
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(9.0));
      torch::optim::StepLR scheduler(optimizer, 2, 0.1);
      GradScaler scaler(world);
      Sampler sampler(world, 40, {.seed = 3});
      RunState run{.model = model,
                   .optimizer = &optimizer,
                   .scheduler = &scheduler,
                   .scaler = &scaler,
                   .sampler = &sampler};
      const LoadReport report = load(folder / "run", run);
      require(run.step == 7 && report.step == 7 && report.ranks == 2, "step");
      const auto lr = [&] { return optimizer.param_groups()[0].options().get_lr(); };
      require(std::abs(lr() - 0.05) < 1e-12, "the learning rate is " + std::to_string(lr()));
      scheduler.step();
      require(std::abs(lr() - 0.05) < 1e-12, "every second step lowers it");
      scheduler.step();
      require(std::abs(lr() - 0.005) < 1e-12, "the schedule went on at " + std::to_string(lr()));
      require(scaler.get_scale() == 256.0, "scale");
      require(sampler.state_dict().taken == 10, "data position");
      require(std::get<double>(run.values["best"]) == std::numeric_limits<double>::infinity(), "infinity");
      require(std::get<int64_t>(run.values["seen"]) == int64_t{1} << 60, "integer");
      require(std::get<std::string>(run.values["name"]) == "a \"quoted\" \n name", "text");
      require(std::get<bool>(run.values["on"]), "flag");
      require(std::get<at::Tensor>(run.values["table"]).equal(torch::arange(5)), "tensor");
      require_words(run.model_config, "heads");
    });
  }
}

TEST(CheckpointOptions, GeneratorsGoOnOnAsManyRanksAndAreSeededOnOthers) {
  const TempFolder folder;
  std::map<int, at::Tensor> next;
  run_processes(2, [&](World& world) {
    auto model = make_net(world);
    torch::manual_seed(static_cast<uint64_t>(10 + world.rank()));
    torch::rand({3});
    save(folder / "run", {.model = model, .step = 4});
    save(folder / "after", {.model = model, .step = 4, .values = {{"next", torch::rand({4})}}});
  });
  run_processes(2, [&](World& world) {
    auto model = make_net(world, 99);
    RunState run{.model = model};
    load(folder / "run", run);
    const at::Tensor here = torch::rand({4});
    if (world.rank() == 0) {
      const auto saved = read_checkpoint(folder / "after");
      require(here.equal(saved.at("value.next")), "rank 0 goes on where it was");
    }
  });
  for (int again = 0; again < 2; ++again)
    run_processes(3, [&](World& world) {
      auto model = make_net(world, 99);
      torch::manual_seed(static_cast<uint64_t>(again));
      RunState run{.model = model};
      load(folder / "run", run);
      const at::Tensor mine = torch::rand({4});
      const Comm comm = Comm::create(world);
      at::Tensor all = torch::empty({12});
      Comm(comm).all_gather(all, mine, "random").wait();
      require(!all.slice(0, 0, 4).equal(all.slice(0, 4, 8)), "ranks have seeds of their own");
      save(folder / ("again" + std::to_string(again)), {.model = model, .step = 0, .values = {{"all", all}}});
    });
  EXPECT_TRUE(read_checkpoint(folder / "again0")
                  .at("value.all")
                  .equal(read_checkpoint(folder / "again1").at("value.all")));
}

template <class Optimizer, class Options>
void check_optimizer(const Options& options, const Options& other) {
  const TempFolder folder;
  std::map<std::string, at::Tensor> wanted;
  run_ranks(2, [&](World& world) {
    auto model = make_net(world);
    Optimizer optimizer(model.parameters(), options);
    for (int64_t step = 0; step < 3; ++step) train(model, optimizer, world, step);
    save(folder / "run", {.model = model, .optimizer = &optimizer, .step = 3});
    for (int64_t step = 3; step < 5; ++step) train(model, optimizer, world, step);
    const auto state = whole_state(model);
    if (world.rank() == 0) wanted = state;
  });
  run_ranks(2, [&](World& world) {
    auto model = make_net(world, 99);
    Optimizer optimizer(model.parameters(), other);
    RunState run{.model = model, .optimizer = &optimizer};
    load(folder / "run", run);
    for (int64_t step = 3; step < 5; ++step) train(model, optimizer, world, step);
    const std::string wrong = difference(whole_state(model), wanted);
    require(wrong.empty(), wrong);
  });
}

TEST(CheckpointOptions, EveryStockOptimizerGoesOnBitForBit) {
  using namespace torch::optim;
  check_optimizer<torch::optim::AdamW>(AdamWOptions(1e-2).amsgrad(true), AdamWOptions(1).amsgrad(true));
  check_optimizer<Adam>(AdamOptions(1e-2).weight_decay(0.1), AdamOptions(1));
  check_optimizer<SGD>(SGDOptions(1e-2).momentum(0.9).nesterov(true), SGDOptions(1));
  check_optimizer<RMSprop>(RMSpropOptions(1e-2).momentum(0.5).centered(true), RMSpropOptions(1));
  check_optimizer<Adagrad>(AdagradOptions(1e-2).lr_decay(0.1), AdagradOptions(1));
  check_optimizer<fsdp::AdamW>(AdamWOptions(1e-2), AdamWOptions(1));
}

TEST(CheckpointOptions, NarrowMomentsStayNarrow) {
  const TempFolder folder;
  std::map<std::string, at::Tensor> wanted;
  for (const bool second : {false, true})
    run_ranks(second ? 3 : 2, [&](World& world) {
      ShardOptions options{.wrap = whole_model()};
      auto model = fully_shard(world, make_learner("gpt2"), options);
      fsdp::AdamW optimizer(model.parameters(), AdamWOptions(1e-2), at::kBFloat16);
      RunState run{.model = model, .optimizer = &optimizer, .step = 1};
      if (second) {
        load(folder / "run", run);
        save(folder / "again", run);
        return;
      }
      model(model.module().batch(world.rank())).backward();
      optimizer.step();
      save(folder / "run", run);
    });
  const auto saved = read_checkpoint(folder / "run");
  int narrow = 0;
  for (const auto& [name, tensor] : saved)
    narrow += name.ends_with(".exp_avg") && tensor.scalar_type() == at::kBFloat16;
  EXPECT_GT(narrow, 0);
  EXPECT_EQ(difference(read_checkpoint(folder / "again"), saved), "");
}

// An optimizer of somebody's own: it remembers the last gradient.
struct MemoryState : torch::optim::OptimizerCloneableParamState<MemoryState> {
  at::Tensor last;
  int64_t count = 0;
  void serialize(torch::serialize::InputArchive&) override {}
  void serialize(torch::serialize::OutputArchive&) const override {}
};
struct MemoryOptions : torch::optim::OptimizerCloneableOptions<MemoryOptions> {
  double rate = 0.1;
  double get_lr() const override { return rate; }
  void set_lr(const double lr) override { rate = lr; }
};
struct MemorySgd : torch::optim::Optimizer {
  explicit MemorySgd(std::vector<at::Tensor> params)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))}, std::make_unique<MemoryOptions>()) {
  }
  torch::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (auto& param : group.params()) {
        if (!param.grad().defined()) continue;
        auto& slot = state()[param.unsafeGetTensorImpl()];
        if (!slot) slot = std::make_unique<MemoryState>();
        auto& own = static_cast<MemoryState&>(*slot);
        if (own.last.defined()) param.sub_(own.last, static_cast<MemoryOptions&>(group.options()).rate);
        own.last = param.grad().clone();
        ++own.count;
      }
    return {};
  }
};
OptimizerFormat memory_format() {
  using State = torch::optim::OptimizerParamState;
  using Options = torch::optim::OptimizerOptions;
  OptimizerFormat format;
  format.type = "MemorySgd";
  format.tensors = [](const State& s) {
    const auto& own = static_cast<const MemoryState&>(s);
    return own.last.defined() ? OptimizerFormat::Tensors{{"last", own.last}} : OptimizerFormat::Tensors{};
  };
  format.steps = [](const State& s) { return static_cast<const MemoryState&>(s).count; };
  format.make = [](const OptimizerFormat::Tensors& tensors, int64_t steps) {
    auto state = std::make_unique<MemoryState>();
    state->last = tensors.at("last");
    state->count = steps;
    return state;
  };
  format.options = [](const Options& o) {
    return OptimizerFormat::Numbers{{"rate", static_cast<const MemoryOptions&>(o).rate}};
  };
  format.set_options = [](Options& o, const OptimizerFormat::Numbers& numbers) {
    static_cast<MemoryOptions&>(o).rate = numbers.at("rate");
  };
  return format;
}

TEST(CheckpointOptions, AnOptimizerOfOnesOwnIsDescribed) {
  const TempFolder folder;
  const OptimizerFormat format = memory_format();
  std::map<std::string, at::Tensor> wanted;
  run_ranks(2, [&](World& world) {
    auto model = make_net(world);
    MemorySgd optimizer(model.parameters());
    for (int64_t step = 0; step < 2; ++step) train(model, optimizer, world, step);
    RunState run{.model = model, .optimizer = &optimizer, .step = 2};
    require_words(refusal([&] { save(folder / "run", run); }), "RunState::optimizer_format");
    run.optimizer_format = &format;
    save(folder / "run", run);
    int64_t kept = 0;
    for (const auto& [param, state] : optimizer.state())
      kept += static_cast<int64_t>(static_cast<const MemoryState&>(*state).last.nbytes());
    require(kept > 0 && model.memory_stats(optimizer, &format).optimizer_bytes == kept,
            "memory_stats() counts its state");
    require(model.memory_stats(optimizer).optimizer_bytes == 0, "and cannot without the format");
    train(model, optimizer, world, 2);
    const auto state = whole_state(model);
    if (world.rank() == 0) wanted = state;
  });
  run_ranks(2, [&](World& world) {
    auto model = make_net(world, 99);
    MemorySgd optimizer(model.parameters());
    RunState run{.model = model, .optimizer = &optimizer, .optimizer_format = &format};
    load(folder / "run", run);
    train(model, optimizer, world, 2);
    const std::string wrong = difference(whole_state(model), wanted);
    require(wrong.empty(), wrong);
  });
}

TEST(CheckpointOptions, WhatDoesNotFitIsListedBeforeAnythingChanges) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto small = fully_shard(world, torch::nn::Linear(4, 3));
    save(folder / "small", {.model = small, .step = 1});
    auto other = fully_shard(world, torch::nn::Linear(torch::nn::LinearOptions(5, 3).bias(false)));
    const at::Tensor before = other.parameters()[0].clone();
    RunState run{.model = other};
    std::string words = checkpoint_error([&] { load(folder / "small", run); });
    require_words(words, "unexpected in the checkpoint (1): bias");
    require_words(words, "'weight' has the shape [3, 5], in the checkpoint [3, 4]");
    require_words(words, "nothing was loaded");
    require(before.equal(other.parameters()[0]), "untouched");
    const LoadReport report = load(folder / "small", run, {.strict = false});
    require(report.unexpected == std::vector<std::string>{"bias"} && report.mismatched.size() == 1,
            "the report");

    auto renamed = fully_shard(world, torch::nn::Sequential(torch::nn::Linear(4, 3)));
    RunState named{.model = renamed};
    words = checkpoint_error([&] { load(folder / "small", named); });
    require_words(words, "missing in the checkpoint (2): 0.weight, 0.bias");
    load(folder / "small", named, {.rename = [](const std::string& name) { return name.substr(2); }});
    require(renamed.parameters()[0].equal(small.parameters()[0]), "renamed");

    auto part = fully_shard(world, torch::nn::Linear(4, 3));
    const at::Tensor bias = part.parameters()[1].clone();
    RunState filtered{.model = part};
    load(folder / "small", filtered, {.filter = [](const std::string& name) { return name == "weight"; }});
    require(part.parameters()[0].equal(small.parameters()[0]) && part.parameters()[1].equal(bias),
            "filtered");

    auto half = fully_shard(world, torch::nn::Linear(4, 3), {.precision = bf16_true()});
    RunState cast{.model = half};
    require_words(checkpoint_error([&] { load(folder / "small", cast); }),
                  "dtype BF16, in the checkpoint F32");
    load(folder / "small", cast, {.cast = true});
    require(half.parameters()[0].equal(small.parameters()[0].to(at::kBFloat16)), "cast");

    fsdp::AdamW adam(small.parameters(), AdamWOptions(1e-3));
    small(torch::ones({2, 4})).sum().backward();
    adam.step();
    RunState with{.model = small, .optimizer = &adam};
    require_words(checkpoint_error([&] { load(folder / "small", with); }), "has no optimizer");
    load(folder / "small", with, {.weights_only = true});
    save(folder / "adam", with);
    torch::optim::SGD sgd(small.parameters(), torch::optim::SGDOptions(0.1));
    RunState others{.model = small, .optimizer = &sgd};
    require_words(checkpoint_error([&] { load(folder / "adam", others); }), "has a AdamW, the run has a SGD");
  });
}

TEST(CheckpointOptions, WhatIsLeftOutKeepsItsMoments) {
  const TempFolder folder;
  const auto moment = [](fsdp::AdamW& adam, const at::Tensor& param) {
    return static_cast<torch::optim::AdamWParamState&>(*adam.state().at(param.unsafeGetTensorImpl()))
        .exp_avg()
        .clone();
  };
  run_ranks(1, [&](World& world) {
    const auto trained = [&](int64_t inputs) {
      auto model = fully_shard(world, torch::nn::Linear(inputs, 3));
      auto adam = std::make_unique<fsdp::AdamW>(model.parameters(), AdamWOptions(1e-2));
      model(torch::randn({2, inputs})).square().sum().backward();
      adam->step();
      return std::pair(model, std::move(adam));
    };
    auto [model, adam] = trained(4);
    save(folder / "run", {.model = model, .optimizer = adam.get(), .step = 1});
    auto [other, its] = trained(4);
    const at::Tensor weight = moment(*its, other.parameters()[0]), bias = moment(*its, other.parameters()[1]);
    RunState run{.model = other, .optimizer = its.get()};
    load(folder / "run", run, {.filter = [](const std::string& name) { return name == "bias"; }});
    require(moment(*its, other.parameters()[0]).equal(weight), "left out by the filter");
    require(moment(*its, other.parameters()[1]).equal(moment(*adam, model.parameters()[1])), "loaded");

    auto [wider, wide] = trained(5);  // another shape
    const at::Tensor kept = moment(*wide, wider.parameters()[0]);
    RunState odd{.model = wider, .optimizer = wide.get()};
    const LoadReport report = load(folder / "run", odd, {.strict = false});
    require(report.mismatched.size() == 1 && moment(*wide, wider.parameters()[0]).equal(kept),
            "another shape");

    torch::optim::SGD sgd(other.parameters(), torch::optim::SGDOptions(0.1));
    RunState type{.model = other, .optimizer = &sgd};
    require(load(folder / "run", type, {.strict = false}).optimizer.size() == 1, "the report tells");
  });
}

TEST(CheckpointOptions, WhatIsNoCheckpointIsRefusedInWords) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "empty");
  std::ofstream(folder / "file") << "x";
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, torch::nn::Linear(4, 3));
    RunState run{.model = model, .step = 3};
    require_words(checkpoint_error([&] { load(folder / "nowhere", run); }), "does not exist");
    require_words(checkpoint_error([&] { load(folder / "empty", run); }), "no checkpoint in");
    require_words(checkpoint_error([&] { load(folder / "file", run); }), "is a file");
    require(!has_checkpoint(folder / "empty"), "there is none");
    save(folder / "run", run);
    require(has_checkpoint(folder / "run"), "there is one");
    Comm::create(world).barrier();
    const std::string shard = folder / "run/step-00000003/shard-00001-model-00001-of-00001.safetensors";
    if (world.rank() == 0) {
      std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('\x55');
    }
    Comm::create(world).barrier();
    const at::Tensor before = model.parameters()[0].clone();
    require_words(checkpoint_error([&] { load(folder / "run", run); }), "is damaged");
    require(before.equal(model.parameters()[0]), "nothing was loaded");
  });
}

TEST(CheckpointOptions, OldOnesGoAndMarkedOnesStay) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, torch::nn::Linear(4, 3));
    for (int64_t step = 1; step <= 7; ++step)
      save(folder / "run", {.model = model, .step = step}, {.keep_last = 2, .keep_every = 3});
  });
  EXPECT_THAT(detail::posix_files().list(folder / "run"),
              ElementsAre(".lock", "latest", "step-00000003", "step-00000006", "step-00000007"));
}

TEST(CheckpointOptions, TwoRunsInOneFolderAreRefused) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "the store of the first ranks is a thread of this process, and gcc's thread sanitizer cannot "
         "follow the ranks that are forked beside it";
#endif
  const TempFolder folder;
  const auto first = fork_ranks(1, [&](World& world) {
    auto model = fully_shard(world, torch::nn::Linear(4, 3));
    save(folder / "run", {.model = model, .step = 1});
    std::ofstream(folder / "ready") << "x";
    std::this_thread::sleep_for(std::chrono::seconds(30));
  });
  while (!std::filesystem::exists(folder / "ready"))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  run_processes(2, [&](World& world) {
    auto model = fully_shard(world, torch::nn::Linear(4, 3));
    require_words(checkpoint_error([&] { save(folder / "run", {.model = model, .step = 2}); }),
                  "another run saves into");
  });
}

TEST(CheckpointOptions, ATwoRankRunInTwoFoldersIsRefused) {
  const TempFolder folder;
  run_processes(2, [&](World& world) {
    auto model = fully_shard(world, torch::nn::Linear(4, 3));
    const std::string own = folder / ("rank" + std::to_string(world.rank()));
    std::filesystem::create_directories(own);
    std::filesystem::current_path(own);  // as on hosts with disks of their own
    require_words(checkpoint_error([&] { save("run", {.model = model, .step = 2}); }), "all ranks share");
  });
}

}  // namespace
}  // namespace fsdp::testing
