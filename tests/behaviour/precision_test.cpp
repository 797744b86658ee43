// Promise: lower precision is exactly what it says: fp32 master weights, compute and sums in the types asked
// for.
#include <gtest/gtest.h>

#include "models/gpt2.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

constexpr int kPrecisionSteps = 10;

// Which type each parameter of the plain model has in forward and backward, by name.
using ComputeType = decltype(PlainOptions::compute);

ComputeType all_in(at::ScalarType type) {
  return [type](const std::string&, at::ScalarType) { return type; };
}
ComputeType as_they_are() { return {}; }

struct Setting {
  ShardOptions options;
  ComputeType compute;
  std::vector<Optim> optims = {Optim::sgd, Optim::adamw};
};

State train_reference(Learner& learner, int ranks, Optim kind, const Setting& setting) {
  const Precision& precision = setting.options.precision;
  const detail::InputCast input{precision.cast_inputs ? precision.param : std::nullopt};
  PlainTrainer trainer(learner, ranks, {.compute = setting.compute, .reduce = precision.reduce});
  const auto optimizer = make_optimizer(kind, trainer.parameters());
  for (int step = 0; step < kPrecisionSteps; ++step) {
    trainer.backward([&](int rank) {
      return learner.forward(detail::cast_argument(input, learner.batch(step * ranks + rank)));
    });
    trainer.step(*optimizer);
  }
  return trainer.state();
}

// Trains `make()` on W = 1, 2, 3 with each optimizer and compares master weights bit for bit.
void expect_reference(const std::string& name, const std::function<std::shared_ptr<Learner>()>& make,
                      const Setting& setting) {
  for (const int ranks : {1, 2, 3}) {
    for (const Optim kind : setting.optims) {
      SCOPED_TRACE(name + " on " + std::to_string(ranks) + " ranks");
      const State wanted = train_reference(*make(), ranks, kind, setting);
      EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
        auto model = fully_shard(world, make(), setting.options);
        train_sharded(model, world, kPrecisionSteps, kind);
        require_same(state_of(model), wanted);
      }));
    }
  }
}

void expect_reference(const std::string& learner, const Setting& setting) {
  expect_reference(
      learner, [&] { return make_learner(learner); }, setting);
}

TEST(Precision, Fp32IsTheModuleAsItIs) {
  expect_reference("mlp", {.options = {.wrap = by_size(200), .precision = fp32()}, .compute = as_they_are()});
}

TEST(Precision, Bf16ComputesOverAnFp32Master) {
  for (const char* learner : {"mlp", "gpt2", "llama"})
    expect_reference(
        learner, {.options = {.wrap = by_size(200), .precision = bf16()}, .compute = all_in(at::kBFloat16)});
}

TEST(Precision, Bf16WithTheFusedOptimizerAndEveryStrategy) {
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
    expect_reference("gpt2", {.options = {.wrap = by_size(200), .strategy = strategy, .precision = bf16()},
                              .compute = all_in(at::kBFloat16),
                              .optims = {Optim::fused_adamw}});
}

TEST(Precision, Bf16SumsAreRoundedOnce) {
  const Precision low{.param = at::kBFloat16, .reduce = at::kBFloat16};
  for (const char* learner : {"mlp", "gpt2", "llama"})
    expect_reference(learner,
                     {.options = {.wrap = by_size(200), .precision = low}, .compute = all_in(at::kBFloat16)});
}

TEST(Precision, Fp32ComputeWithBf16Sums) {
  expect_reference("gpt2", {.options = {.wrap = by_size(200), .precision = {.reduce = at::kBFloat16}},
                            .compute = as_they_are()});
}

TEST(Precision, ReplicatedParametersFollowThePrecisionToo) {
  expect_reference("gpt2", {.options = {.wrap = by_size(200), .precision = bf16(), .replicate_below = 100},
                            .compute = all_in(at::kBFloat16)});
  expect_reference("gpt2", {.options = {.wrap = by_size(200),
                                        .precision = {.param = at::kBFloat16, .reduce = at::kBFloat16},
                                        .replicate_below = 100},
                            .compute = all_in(at::kBFloat16)});
}

TEST(Precision, NormsStayFp32WhereTheUnitSaysSo) {
  const auto is_norm = [](const std::string& path) { return path.find("ln_") != std::string::npos; };
  ShardOptions options{.wrap = by_type<torch::nn::LayerNormImpl, models::GPT2BlockImpl>(),
                       .precision = bf16()};
  options.unit = [is_norm](const std::string& unit) {
    return is_norm(unit) ? UnitOptions{.precision = fp32()} : UnitOptions{};
  };
  expect_reference("gpt2",
                   {.options = options, .compute = [is_norm](const std::string& name, at::ScalarType) {
                      return is_norm(name) ? at::kFloat : at::kBFloat16;
                    }});
}

// One parameter of each type, so that a unit has several regions; shapes that do not divide by the ranks.
struct MixedTypes : Learner {
  MixedTypes() {
    const SeededHere seeded(3);
    wide = register_parameter("wide", torch::randn({5, 7}, torch::kDouble));
    plain = register_parameter("plain", torch::randn({7, 3}));
    narrow = register_parameter("narrow", torch::randn({3, 2}).to(torch::kBFloat16));
    shift = register_parameter("shift", torch::randn({7}, torch::kDouble));
  }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
    return {torch::randn({4, 5}, gen)};
  }
  Tensor forward(const std::vector<Tensor>& batch) override {
    auto x = batch[0].to(wide.scalar_type()).mm(wide) + shift;
    x = x.to(plain.scalar_type()).tanh().mm(plain);
    x = x.to(narrow.scalar_type()).mm(narrow);
    return x.to(torch::kFloat).square().mean();
  }
  Tensor wide, plain, narrow, shift;
};

TEST(Precision, AModuleOfSeveralTypesKeepsEachInItsOwn) {
  expect_reference("mixed", [] { return std::make_shared<MixedTypes>(); },
                   {.options = {.wrap = whole_model()}, .compute = as_they_are()});
}

TEST(Precision, AModuleOfSeveralTypesComputesInTheOneAskedFor) {
  expect_reference(
      "mixed", [] { return std::make_shared<MixedTypes>(); },
      {.options = {.wrap = whole_model(), .precision = bf16()}, .compute = all_in(at::kBFloat16)});
}

TEST(Precision, SlicesAndGradientsHaveTheMastersType) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(std::make_shared<MixedTypes>()),
                               {.precision = {.param = at::kBFloat16, .reduce = at::kBFloat16}});
      model(model.module().batch(world.rank())).backward();
      for (const auto& item : model.named_parameters()) {
        const auto type = item.key() == "plain"    ? at::kFloat
                          : item.key() == "narrow" ? at::kBFloat16
                                                   : at::kDouble;
        require(item.value().scalar_type() == type, item.key() + " has its own type");
        require(item.value().grad().scalar_type() == type, item.key() + "'s gradient has its type");
      }
      const auto whole = model.full_params();
      require(model.module().named_parameters()["wide"].scalar_type() == at::kDouble,
              "full precision inside");
    });
  }
}

// Answers what it was given.
struct Recorder : torch::nn::Module {
  Recorder() { weight = register_parameter("weight", torch::ones({4, 4})); }

  struct Inner {
    Tensor untouched;
  };
  using Several = std::vector<Tensor>;

  std::tuple<Tensor, Tensor> forward(const Tensor& x, const Several& several,
                                     const std::tuple<Tensor, int64_t, Tensor>& mixed,
                                     const std::optional<Tensor>& maybe, const std::optional<Tensor>& nothing,
                                     const std::pair<Tensor, std::vector<Several>>& nested,
                                     const Inner& inner) {
    seen = {x.scalar_type(),
            several.at(0).scalar_type(),
            several.at(1).scalar_type(),
            std::get<0>(mixed).scalar_type(),
            std::get<2>(mixed).scalar_type(),
            maybe->scalar_type(),
            nested.first.scalar_type(),
            nested.second.at(0).at(0).scalar_type(),
            inner.untouched.scalar_type()};
    require(std::get<1>(mixed) == 7, "a number passes");
    require(!nothing.has_value(), "an empty optional stays empty");
    weight_type = weight.scalar_type();
    return {x.to(weight.scalar_type()).mm(weight), std::get<2>(mixed)};
  }

  Tensor weight;
  std::vector<at::ScalarType> seen;
  at::ScalarType weight_type = at::kFloat;
};

struct CastCase {
  Precision precision;
  at::ScalarType input;   // as forward must see floating inputs
  at::ScalarType output;  // of its first result
};

TEST(Precision, ForwardsInputsAndOutputsAreCast) {
  const auto f32 = at::kFloat, b16 = at::kBFloat16, f64 = at::kDouble;
  const std::vector<CastCase> cases = {
      {fp32(), f32, f32},
      {bf16(), b16, b16},
      {{.param = b16, .output = f32}, b16, f32},
      {{.param = b16, .cast_inputs = false}, f32, b16},
      {{.param = b16, .output = f64, .cast_inputs = false}, f32, f64},
      {{.output = b16}, f32, b16},
  };
  for (const int ranks : {1, 2})
    for (const CastCase& one : cases)
      run_ranks(ranks, [&](World& world) {
        auto model = fully_shard(world, std::make_shared<Recorder>(), {.precision = one.precision});
        const Tensor x = torch::full({2, 4}, static_cast<double>(world.rank()));
        const Tensor whole = torch::arange(3);
        const auto [y, numbers] =
            model(x, Recorder::Several{x, whole}, std::tuple<Tensor, int64_t, Tensor>{x, 7, whole},
                  std::optional<Tensor>(x), std::optional<Tensor>(),
                  std::pair<Tensor, std::vector<Recorder::Several>>{x, {{x}}}, Recorder::Inner{x});
        const auto in = one.input;
        const std::vector<at::ScalarType> wanted = {in, in, at::kLong, in, at::kLong, in, in, in, f32};
        require(model.module().seen == wanted, "floating inputs are cast, the rest is not");
        require(model.module().weight_type == one.precision.param.value_or(f32), "parameters are in `param`");
        require(y.scalar_type() == one.output, "the result is in `output`");
        require(numbers.scalar_type() == at::kLong, "integers come back as integers");
        require(x.scalar_type() == f32, "the caller's tensor is as it was");
      });
}

TEST(Precision, CastInputsCarryGradientsBack) {
  run_ranks(2, [](World& world) {
    struct Head : torch::nn::Module {
      Head() { weight = register_parameter("weight", torch::full({4, 1}, 0.5)); }
      Tensor forward(const Tensor& x) { return x.mm(weight); }
      Tensor weight;
    };
    auto model = fully_shard(world, std::make_shared<Head>(), {.precision = bf16()});
    Tensor x = torch::full({2, 4}, static_cast<double>(world.rank() + 1)).requires_grad_();
    model(x).sum().backward();
    require(x.grad().defined() && x.grad().scalar_type() == at::kFloat, "in the caller's own type");
    require(x.grad().equal(torch::full({2, 4}, 0.5)), "through the cast");
  });
}

TEST(Precision, RunCastsWhatComesOutOnly) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, std::make_shared<Recorder>(),
                             {.precision = {.param = at::kBFloat16, .output = at::kFloat}});
    const Tensor x = torch::ones({2, 4});
    const Tensor y = model.run([&](Recorder& module) {
      require(x.scalar_type() == at::kFloat, "captured tensors are the caller's");
      return x.to(at::kBFloat16).mm(module.weight);
    });
    require(y.scalar_type() == at::kFloat && y.equal(torch::full({2, 4}, 4.0)), "cast to `output`");
  });
}

// Sums in bf16 move half the bytes of sums in fp32, gathers as well.
TEST(Precision, BytesMovedFollowTheTypes) {
  const auto bytes = [](const Precision& precision) {
    std::map<std::string, int64_t> moved;
    run_ranks(2, [&](World& world) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200), .precision = precision});
      const auto count = [&] {
        std::map<std::string, int64_t> now;
        for (const auto& row : model.comm_stats()) now[row.op] = row.bytes;
        return now;
      };
      model(model.module().batch(world.rank())).backward();
      model.zero_grad();
      const auto before = count();
      model(model.module().batch(world.rank())).backward();
      if (world.rank() == 0)
        for (const auto& [op, now] : count())
          if (op == "all_gather" || op == "reduce_scatter") moved[op] = now - before.at(op);
    });
    return moved;
  };
  const auto full = bytes(fp32());
  const auto half = bytes({.param = at::kBFloat16, .reduce = at::kBFloat16});
  EXPECT_EQ(full.size(), 2U);
  for (const auto& [op, moved] : full) {
    // Alignment to 256 bytes is counted in the narrowest type, so that padding is at most doubled.
    EXPECT_LT(half.at(op), moved * 3 / 4) << op;
    EXPECT_GE(half.at(op), moved / 2) << op;
  }
}

}  // namespace
}  // namespace fsdp::testing
