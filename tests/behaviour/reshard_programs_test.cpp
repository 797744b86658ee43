// Promise: whatever a program does with a model between forward and backward, reshard groups do not show in
// its numbers.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "runtime/engine.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kProgramSteps = 6;

// Four layers and a small head, to be run in unusual ways.
struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(int rank) : rank(rank) {
    const SeededHere seeded(3);
    for (const char* name : {"a", "b", "c", "d"})
      layers.push_back(register_module(name, torch::nn::Linear(16, 16)));
    head = register_module("head", torch::nn::Linear(16, 1));
  }
  at::Tensor layer(size_t i, const at::Tensor& x) { return torch::tanh(layers[i]->forward(x)); }
  at::Tensor forward(at::Tensor x);

  int rank;
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head{nullptr};
  bool recompute = false, fail = false, skip = false, head_on_rank_0 = false;
};
TORCH_MODULE(Layers);

// Layers 1 and 2 without saving anything but their input.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor run(LayersImpl& net, const at::Tensor& x) { return net.layer(2, net.layer(1, x)); }
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t net) {
    context->save_for_backward({x});
    context->saved_data["net"] = net;
    return run(*reinterpret_cast<LayersImpl*>(net), x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradient) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode with_grad(true);
    auto y = run(*reinterpret_cast<LayersImpl*>(context->saved_data["net"].toInt()), x);
    torch::autograd::backward({y}, {gradient[0]});
    return {x.grad(), at::Tensor()};
  }
};

at::Tensor LayersImpl::forward(at::Tensor x) {
  if (head_on_rank_0) return rank == 0 ? head(x).sum() : x.sum();
  x = layer(0, x);
  if (recompute) {
    x = Recomputed::apply(x, reinterpret_cast<int64_t>(this));
  } else {
    x = layer(1, x);
    if (fail) throw std::runtime_error("on purpose");
    if (!skip) x = layer(2, x);
  }
  return head(layer(3, x)).pow(2).sum();
}

// What a step does up to its gradients.
using Layered = ShardedTwin<LayersImpl>;
using Program = std::function<void(Layered& model, const Moment& now)>;

at::Tensor layered_loss(Layered& model, int64_t number = 0) {
  return model(model.now().randn({5, 16}, number));
}

State train_by(const Program& program, const World& world, int group, int64_t replicate_below) {
  const ShardOptions options{
      .wrap = by_size(200), .replicate_below = replicate_below, .reshard_group = group};
  Layered model(world, fully_shard(world, Layers(world.rank()), options));
  while (model.step < kProgramSteps) {
    model.train(program);
    require(model.memory_stats().overflow_bytes == 0, "kept between steps");
  }
  return state_of(model);
}

// The model's forward fails half way.
void fail(Layered& model) {
  model.module().fail = true;
  EXPECT_THROW(layered_loss(model, 7), std::runtime_error);
  model.module().fail = false;
}

const std::map<std::string, Program>& programs() {
  static const std::map<std::string, Program> all{
      {"NoSync",
       [](Layered& model, const Moment&) {
         {
           const auto kept_back = model.no_sync();
           layered_loss(model, 0).backward();
         }
         layered_loss(model, 1).backward();
       }},
      {"BackwardTwice",
       [](Layered& model, const Moment&) {
         auto loss = layered_loss(model);
         loss.backward({}, /*retain_graph=*/true);
         loss.backward();
       }},
      {"TwoForwards",
       [](Layered& model, const Moment&) {
         auto one = layered_loss(model, 0), two = layered_loss(model, 1);
         one.backward();
         two.backward();
       }},
      {"FailedForwards",
       [](Layered& model, const Moment& now) {
         if (now.step % 2 == 1) fail(model);
         auto loss = layered_loss(model);
         if (now.step % 3 == 1) fail(model);
         loss.backward();
       }},
      {"FullParamsBetween",
       [](Layered& model, const Moment& now) {
         auto loss = layered_loss(model);
         if (now.step % 2 == 1) const auto whole = model.full_params();
         loss.backward();
       }},
      {"Recomputed",
       [](Layered& model, const Moment&) {
         model.module().recompute = true;
         layered_loss(model).backward();
       }},
      {"WrittenBeforeRecomputed",
       [](Layered& model, const Moment&) {
         model.module().recompute = true;
         auto loss = layered_loss(model);
         {
           const at::NoGradGuard no_grad;
           for (const auto& one : model.named_parameters())
             if (one.key() == "b.weight" || one.key() == "c.weight") one.value().mul_(1.1);
         }
         loss.backward();
       }},
      {"Frozen",
       [](Layered& model, const Moment& now) {
         for (auto& one : model.module().layers[1]->parameters()) one.set_requires_grad(now.step % 3 != 1);
         layered_loss(model).backward();
       }},
      {"OffThePlan",
       [](Layered& model, const Moment& now) {
         model.module().skip = now.step % 2 == 1;
         layered_loss(model).backward();
       }},
      {"OneRankReadsWhatIsWhole",
       [](Layered& model, const Moment&) {
         auto loss = layered_loss(model);
         {
           const at::NoGradGuard no_grad;
           model.module().head_on_rank_0 = true;
           layered_loss(model, 5);
           model.module().head_on_rank_0 = false;
         }
         loss.backward();
       }},
      {"AStepBetweenForwards",
       [](Layered& model, const Moment&) {
         layered_loss(model, 0).backward();
         auto dropped = layered_loss(model, 1);
         model.optimizer->step();
         layered_loss(model, 2).backward();
       }},
  };
  return all;
}

class ReshardGroupProgram : public ::testing::TestWithParam<std::string> {};

TEST_P(ReshardGroupProgram, IsTheSameAsWithoutAGroup) {
  run_ranks(4, [&](World& world) {
    const Program& program = programs().at(GetParam());
    for (const int64_t whole : {0, 40})
      require_same(train_by(program, world, 2, whole), train_by(program, world, 0, whole));
  });
}

std::vector<std::string> program_names() {
  std::vector<std::string> names;
  for (const auto& [name, program] : programs()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, ReshardGroupProgram, ::testing::ValuesIn(program_names()),
                         [](const auto& info) { return info.param; });

struct AroundImpl : torch::nn::Module {
  explicit AroundImpl(int rank) {
    const SeededHere seeded(4);
    before = register_module("before", torch::nn::Linear(16, 16));
    net = register_module("net", Layers(rank));
  }
  at::Tensor forward(const at::Tensor& x) { return net(before(x)); }
  torch::nn::Linear before{nullptr};
  Layers net{nullptr};
};

// The bytes that gathers in `group` have moved so far.
int64_t bytes_gathered_in(const Comm& group) {
  for (const OpStats& one : group.stats())
    if (one.op == "all_gather") return one.bytes;
  return 0;
}

// The block's units go on in parts as the model's own do: kept from forward to backward, gathered in the
// group, with the numbers of a model without groups.
TEST(ReshardGroupBlock, ABlockShardedBeforeItsModel) {
  run_ranks(4, [](World& world) {
    const auto wanted = [&] {
      ShardedTwin model(
          world, fully_shard(world, std::make_shared<AroundImpl>(world.rank()), {.wrap = by_size(200)}));
      while (model.step < kProgramSteps)
        model.train([](auto& model, const Moment& now) { model(now.randn({5, 16})).backward(); });
      return state_of(model);
    }();

    const ShardOptions options{.wrap = by_size(200), .reshard_group = 2};
    const auto around = std::make_shared<AroundImpl>(world.rank());
    auto block = fully_shard(world, around->net, options);
    const at::Tensor left = block(torch::ones({2, 16}) * world.rank());  // and no backward
    require(block.memory_stats().overflow_bytes > 0, "the block keeps parts for a backward");
    ShardedTwin model(world, fully_shard(world, around, options));
    require(model.memory_stats().overflow_bytes == 0, "which the model around it does not take over");

    detail::Mesh& mesh = detail::current(model.engine()).mesh;
    const Comm part = mesh.reshard_group(2);
    while (model.step < kProgramSteps) {
      model.train([&](auto& model, const Moment& now) {
        const at::Tensor loss = model(now.randn({5, 16}));
        std::set<std::string> kept;
        for (const auto& unit : detail::current(model.engine()).units)
          if (unit->saved_bytes() > 0) kept.insert(unit->name());
        // In the first step nobody knows yet that backward does not read the layer before the block.
        if (now.step > 0)
          require(kept == std::set<std::string>{"a", "b", "c", "d"}, "the block's units are kept");
        const int64_t in_row = bytes_gathered_in(mesh.row), in_part = bytes_gathered_in(part);
        loss.backward();
        require(bytes_gathered_in(mesh.row) == in_row, "backward gathers nothing in the row");
        require(bytes_gathered_in(part) > in_part, "but in the group");
        require(model.memory_stats().overflow_bytes == 0, "kept after backward");
      });
    }
    require_same(state_of(model), wanted);
  });
}

}  // namespace
}  // namespace fsdp::testing
