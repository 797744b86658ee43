// Promise: TorchScript models shard and train as they are.
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <unistd.h>

#include <filesystem>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kScriptSteps = 12;

torch::jit::Module make_block(const std::string& name, int64_t width) {
  torch::jit::Module block(name);
  block.register_parameter("weight", torch::randn({width, width}) * 0.3, false);
  block.register_parameter("bias", torch::zeros({width}), false);
  block.register_parameter("scale", torch::ones({width}), false);
  block.define(R"(
    def forward(self, x):
        return x + torch.tanh(torch.matmul(x * self.scale, self.weight) + self.bias)
  )");
  return block;
}

// Two blocks used in a loop over a branch, a frozen parameter and a buffer.
torch::jit::Module make_script() {
  const SeededHere seeded(21);
  torch::jit::Module root("Net");
  root.register_module("first", make_block("Block", 12));
  root.register_module("second", make_block("Block", 12));
  root.register_parameter("head", torch::randn({12, 3}) * 0.3, false);
  root.register_parameter("fixed", torch::full({12}, 0.5), false);
  root.register_buffer("calls", torch::zeros({1}));
  root.register_attribute("training", c10::BoolType::get(), true);
  root.define(R"(
    def forward(self, x, y):
        self.calls.add_(1)
        for i in range(3):
            if i % 2 == 0:
                x = self.first.forward(x)
            else:
                x = self.second.forward(x)
        d = torch.matmul(x * self.fixed, self.head) - y
        return (d * d).mean()

    def features(self, x):
        return self.second.forward(self.first.forward(x))
  )");
  for (auto parameter : root.named_parameters()) parameter.value.set_requires_grad(parameter.name != "fixed");
  return root;
}

std::pair<at::Tensor, at::Tensor> batch(int64_t index) {
  auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
  return {torch::randn({5, 12}, gen), torch::randn({5, 3}, gen)};
}

State state_of_script(const torch::jit::Module& script) {
  State state;
  for (const auto& item : script.named_parameters()) state[item.name] = item.value.detach().clone();
  return state;
}

State train_plain_script(int ranks) {
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);  // compiled gradients are summed otherwise
  auto script = make_script();
  PlainTrainer::Named params;
  for (const auto& item : script.named_parameters()) params.emplace_back(item.name, item.value);
  PlainTrainer trainer(params, ranks);
  const auto optimizer = make_optimizer(Optim::sgd, trainer.parameters());
  for (int step = 0; step < kScriptSteps; ++step) {
    trainer.backward([&](int rank) {
      const auto [x, y] = batch(step * ranks + rank);
      return script.forward({x, y}).toTensor();
    });
    trainer.step(*optimizer);
  }
  return trainer.state();
}

TEST(Script, BitsEqualThePlainLoop) {
  for (const int ranks : {1, 2, 4}) {
    const State wanted = train_plain_script(ranks);
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_script(), {.wrap = by_type_name({"Block"})});
      require(model.unit_counts().size() == 3, "units: the blocks and the rest");
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      for (int step = 0; step < kScriptSteps; ++step) {
        const auto [x, y] = batch(step * world.size() + world.rank());
        model(x, y).toTensor().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto whole = model.full_params();
      require_same(state_of_script(model.module()), wanted);
      for (const auto& item : model.module().named_buffers())
        require(item.value.item<float>() == kScriptSteps, "the script's own buffer");
    });
  }
}

TEST(Script, OtherMethodsEvalAndPrecision) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_script(), {.precision = bf16()});
    const auto [x, y] = batch(world.rank());
    require(model.run_method("features", x).toTensor().scalar_type() == at::kBFloat16, "inputs are cast");
    model.eval();
    require(!model.module().is_training(), "eval() reaches the script");
    model.train();
    model(x, y).toTensor().backward();
    require(model.named_parameters()["first.weight"].grad().defined(), "names are the script's");
    bool refused = false;
    try {
      model.module().forward({x, y});
    } catch (const std::exception& error) {
      refused = std::string(error.what()).find("is sharded") != std::string::npos;
    }
    require(refused, "the script itself is refused");
  });
}

TEST(Script, EveryModuleKeepsItsMode) {
  run_ranks(2, [](World& world) {
    auto script = make_script();
    auto norm = make_block("Norm", 12);
    norm.register_attribute("training", c10::BoolType::get(), false);
    script.register_module("norm", norm);
    auto model = fully_shard(world, script);
    require(model.is_training() && script.is_training(), "the script trains");
    require(!norm.is_training(), "a module in eval mode stays so");
    model.train();
    require(norm.is_training(), "train() reaches it");
    require(fully_shard(world, make_block("Block", 4)).is_training(), "a script without a mode trains");
  });
}

// Python's frontend knows fork(), LibTorch's has to be told.
struct WithFork : torch::jit::NativeResolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(const std::string& name,
                                                         torch::jit::GraphFunction& in,
                                                         const torch::jit::SourceRange& at) override {
    if (name == "fork") return torch::jit::SpecialFormValue::create(torch::jit::prim::fork);
    return NativeResolver::resolveValue(name, in, at);
  }
};

torch::jit::Module make_fork() {
  const SeededHere seeded(22);
  torch::jit::Module root("Fork");
  std::string forks, sum = "x";
  for (const std::string name : {"a", "b", "c", "d"}) {
    root.register_module(name, make_block("Block", 12));
    forks += "        f_" + name + " = fork(self." + name + ".forward, x)\n";
    sum += " + torch.wait(f_" + name + ")";
  }
  root.define("    def forward(self, x):\n" + forks + "        return " + sum + "\n",
              std::make_shared<WithFork>());
  for (auto parameter : root.parameters()) parameter.set_requires_grad(true);
  return root;
}

// On threads, ranks would gather the blocks in different orders.
TEST(Script, ForksRunInTheOrderOfTheScript) {
  run_ranks(4, [](World& world) {
    auto model = fully_shard(world, make_fork(), {.wrap = by_type_name({"Block"})});
    for (int step = 0; step < 10; ++step) {
      const auto x = batch(step * world.size() + world.rank()).first;
      const auto result = model(x).toTensor();
      const bool same = at::equal(result, make_fork().forward({x}).toTensor());
      require(same, "the same values as the plain script");
      result.sum().backward();
      model.zero_grad();
    }
  });
}

TEST(Script, TensorsInsideContainersAreCast) {
  run_ranks(2, [](World& world) {
    auto script = make_block("Block", 12);
    script.define(R"(
      def nested(self, xs: List[Tensor], named: Dict[str, Tensor], pair: Tuple[Tensor, int]):
          y = torch.matmul(xs[0] + named["x"] + pair[0], self.weight)
          return [y, y], {"y": y}, (y, xs[1], pair[1])
    )");
    auto precision = bf16();
    precision.output = at::kFloat;
    auto model = fully_shard(world, script, {.precision = precision});
    const auto x = batch(world.rank()).first;
    c10::Dict<std::string, at::Tensor> named;
    named.insert("x", x);
    const std::vector<at::Tensor> xs = {x, at::arange(3)};
    const auto result = model.run_method("nested", xs, named, std::make_tuple(x, 7)).toTuple()->elements();
    require(result[0].toTensorVector().at(1).scalar_type() == at::kFloat, "a list comes out in float");
    require(result[1].toGenericDict().at("y").toTensor().scalar_type() == at::kFloat, "and a dictionary");
    const auto& inner = result[2].toTupleRef().elements();
    require(inner[0].toTensor().scalar_type() == at::kFloat, "and a tuple inside");
    require(inner[1].toTensor().scalar_type() == at::kLong && inner[2].toInt() == 7, "the rest as it is");
    require(xs[0].scalar_type() == at::kFloat, "the caller's list is the caller's");
  });
}

TEST(Script, ErrorsAreThrownAsWhatTheyAre) {
  run_ranks(2, [](World& world) {
    auto script = make_block("Block", 12);
    script.define(R"(
      def write(self, x):
          self.bias.detach().add_(1)
          return x

      def wrong(self, x):
          return torch.matmul(x, x)
    )");
    auto model = fully_shard(world, script);
    const auto x = batch(world.rank()).first;
    std::string said;
    try {
      model.run_method("write", x);
    } catch (const c10::Error& error) {
      said = error.what();
    }
    require(said.find("is written inside forward") != std::string::npos, "ours: " + said);
    said.clear();
    try {
      model.run_method("wrong", x);
    } catch (const std::exception& error) {
      said = error.what();
    }
    require(said.find("torch.matmul") != std::string::npos, "the script's own: " + said);
  });
}

// A trained script goes back to PyTorch as a file.
TEST(Script, SavedWholeItLoadsAndShardsAgain) {
  const auto folder = std::filesystem::temp_directory_path();
  run_ranks(2, [&](World& world) {
    const auto path =
        folder / ("fsdp_script_" + std::to_string(::getpid()) + "_" + std::to_string(world.rank()));
    auto model = fully_shard(world, make_script(), {.wrap = by_type_name({"Block"})});
    const auto [x, y] = batch(world.rank());
    {
      const auto whole = model.full_params();
      model.module().save(path);
    }
    const auto loaded = torch::jit::load(path);
    std::filesystem::remove(path);
    require_same(state_of_script(loaded), state_of_script(make_script()));
    auto again = fully_shard(world, loaded, {.wrap = by_type_name({"Block"})});
    require(at::equal(again(x, y).toTensor(), model(x, y).toTensor()), "the same loss");
  });
}

TEST(Script, AFrozenScriptIsRefused) {
  run_ranks(1, [](World& world) {
    auto script = make_script();
    script.eval();
    std::string said;
    try {
      auto model = fully_shard(world, torch::jit::freeze(script));
    } catch (const c10::Error& error) {
      said = error.what();
    }
    require(said.find("no parameters to shard") != std::string::npos, said);
  });
}

}  // namespace
}  // namespace fsdp::testing
