// Promise: TorchScript models shard and train as they are.
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

constexpr int kSteps = 12;

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
  std::vector<at::Tensor> params;
  for (const auto& item : script.named_parameters())
    if (item.value.requires_grad()) params.push_back(item.value);
  torch::optim::SGD optimizer(params, torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::vector<at::Tensor>> grads(params.size());
    for (int rank = 0; rank < ranks; ++rank) {
      const auto [x, y] = batch(step * ranks + rank);
      optimizer.zero_grad();
      script.forward({x, y}).toTensor().backward();
      for (size_t i = 0; i < params.size(); ++i) grads[i].push_back(params[i].grad().clone());
    }
    for (size_t i = 0; i < params.size(); ++i)
      params[i].mutable_grad() = tree_sum(grads[i]).mul(1.0F / static_cast<float>(ranks));
    optimizer.step();
  }
  return state_of_script(script);
}

TEST(Script, BitsEqualThePlainLoop) {
  for (const int ranks : {1, 2, 4}) {
    const State wanted = train_plain_script(ranks);
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_script(), {.wrap = by_type_name({"Block"})});
      require(model.unit_counts().size() == 3, "units: the blocks and the rest");
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      for (int step = 0; step < kSteps; ++step) {
        const auto [x, y] = batch(step * world.size() + world.rank());
        model(x, y).toTensor().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto whole = model.full_params();
      const std::string different = difference(state_of_script(model.module()), wanted);
      require(different.empty(), different);
      for (const auto& item : model.module().named_buffers())
        require(item.value.item<float>() == kSteps, "the script's own buffer");
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
