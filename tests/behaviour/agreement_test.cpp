// Promise: ranks that give fully_shard() different models or options are all told which rank differs and
// where, before anything is changed.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

// Two layers under names of their own, in the order asked for.
struct AgreeNet : torch::nn::Module {
  explicit AgreeNet(bool reversed = false, int64_t outputs = 7, bool tied = false) {
    const SeededHere seeded(3);
    const char* names[] = {"a", "b"};
    for (const int i : {0, 1})
      layers.push_back(register_module(names[reversed ? 1 - i : i], torch::nn::Linear(11, outputs)));
    register_parameter("c", tied ? layers[0]->weight : torch::ones({7, 11}));
    register_buffer("scale", torch::ones({3}));
  }
  at::Tensor forward(const at::Tensor& x) { return (layers[0](x) + layers[1](x)).square().mean(); }
  std::vector<torch::nn::Linear> layers;
};

using MakesNet = std::function<std::shared_ptr<AgreeNet>()>;

// Rank 1 (the last one of several) has `other` where the rest have an ordinary net and no options.
struct Disagreement {
  std::string name;
  MakesNet other = [] { return std::make_shared<AgreeNet>(); };
  ShardOptions options = {};
  std::vector<std::string> words;
};

MakesNet changed(const std::function<void(AgreeNet&)>& change) {
  return [change] {
    auto net = std::make_shared<AgreeNet>();
    change(*net);
    return net;
  };
}

std::vector<Disagreement> disagreements() {
  const MakesNet same = [] { return std::make_shared<AgreeNet>(); };
  return {
      {"layers in the other order",
       [] { return std::make_shared<AgreeNet>(true); },
       {},
       {"rank 1 has parameter 'b.weight' [7, 11] Float", "rank 0 has parameter 'a.weight' [7, 11] Float"}},
      {"another shape",
       [] { return std::make_shared<AgreeNet>(false, 8); },
       {},
       {"rank 1 has parameter 'a.weight' [8, 11]", "[7, 11]"}},
      {"another dtype",
       changed([](AgreeNet& net) { net.layers[1]->to(torch::kDouble); }),
       {},
       {"rank 1 has parameter 'b.weight' [7, 11] Double", "rank 0 has parameter 'b.weight' [7, 11] Float"}},
      {"a tie",
       [] { return std::make_shared<AgreeNet>(false, 7, true); },
       {},
       {"rank 1 has parameter 'c' [7, 11] Float, tied to 'a.weight'"}},
      {"a frozen layer",
       changed([](AgreeNet& net) { net.layers[1]->bias.set_requires_grad(false); }),
       {},
       {"rank 1 has parameter 'b.bias' [7] Float, frozen"}},
      {"memory in another order",
       changed([](AgreeNet& net) {
         net.layers[0]->weight.set_data(torch::ones({11, 7}).t());
       }),
       {},
       {"rank 1 has parameter 'a.weight' [7, 11] Float, strides [1, 7]"}},
      {"one parameter more",
       changed([](AgreeNet& net) { net.register_module("z", torch::nn::Linear(2, 2)); }),
       {},
       {"rank 1 has parameter 'z.weight'"}},
      {"another buffer",
       changed([](AgreeNet& net) { net.register_buffer("shift", torch::ones({2})); }),
       {},
       {"rank 1 has buffer 'shift' [2] Float"}},
      {"another strategy",
       same,
       {.strategy = Strategy::no_shard},
       {"rank 1 has strategy no_shard", "full_shard"}},
      {"another precision", same, {.precision = bf16()}, {"rank 1 has precision.param BFloat16"}},
      {"another limit",
       same,
       {.limit_all_gathers = 3},
       {"rank 1 has limit_all_gathers 3", "limit_all_gathers 2"}},
      {"another prefetch",
       same,
       {.backward_prefetch = BackwardPrefetch::post},
       {"rank 1 has backward_prefetch post", "backward_prefetch pre"}},
      {"shards of its own", same, {.share_shards = false}, {"rank 1 has share_shards false"}},
      {"a codec", same, {.gather_codec = cast_codec(at::kBFloat16)}, {"rank 1 has gather_codec"}},
      {"something ignored", same, {.ignored = {"b"}}, {"rank 1 has ignored 'b'"}},
      {"another wrap",
       same,
       {.wrap = by_type_name({"Linear"})},
       {"rank 1 has unit 'root' of 1 parameters", "of 5 parameters"}},
      {"another precision of a unit",
       same,
       {.unit = [](const std::string&) { return UnitOptions{.precision = bf16()}; }},
       {"rank 1 has unit 'root'", "BFloat16"}},
      {"a prefetch list",
       same,
       {.unit = [](const std::string&) { return UnitOptions{.forward_prefetch = {{"root"}}}; }},
       {"rank 1 has unit 'root'", "forward_prefetch 'root'"}},
  };
}

TEST(Agreement, RanksThatDifferAreAllToldWhere) {
  for (const Disagreement& one : disagreements())
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(one.name + ", " + std::to_string(ranks) + " ranks");
      std::set<std::string> heard;
      std::mutex mutex;
      EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
        const bool differs = world.rank() == 1;
        const auto net = differs ? one.other() : std::make_shared<AgreeNet>();
        ShardOptions options = differs ? one.options : ShardOptions{};
        options.comm.timeout = std::chrono::seconds(20);
        const std::string words = refusal([&] { fully_shard(world, net, options); });
        for (const std::string& word : one.words) require_words(words, word);
        require_words(words, "every rank");  // what to do
        if (net->layers[1]->weight.scalar_type() == torch::kFloat)
          net->forward(torch::ones({2, 11})).backward();  // left as it was
        const std::lock_guard lock(mutex);
        heard.insert(words);
      }));
      EXPECT_EQ(heard.size(), 1u) << "all hear the same";
    }
}

// Padded to a multiple of three these have equal sizes for a while.
TEST(Agreement, AShapeThatDependsOnTheRankIsFound) {
  run_ranks(3, [](World& world) {
    const auto net = std::make_shared<AgreeNet>(false, 7 + world.rank());
    const std::string words = refusal([&] { fully_shard(world, net); });
    require_words(words, "rank 1 has parameter 'a.weight' [8, 11]");
    require_words(words, "rank 0 has parameter 'a.weight' [7, 11]");
  });
}

TEST(Agreement, WithoutSharedBuffersTheirShapesAreARanksOwn) {
  run_ranks(2, [](World& world) {
    const auto net = std::make_shared<AgreeNet>();
    net->register_buffer("own", torch::ones({2 + world.rank()}));
    auto model = fully_shard(world, net, {.sync_module_states = false});
    model(torch::ones({2, 11})).backward();
  });
}

// Devices and memory may differ: rank 0 has the values, the others have shapes.
TEST(Agreement, EqualModelsPass) {
  const auto make = [] { return std::make_shared<AgreeNet>(); };
  const auto trains = [](World& world, const std::shared_ptr<AgreeNet>& net, const ShardOptions& options) {
    ShardOptions soon = options;
    soon.comm.timeout = std::chrono::seconds(20);
    auto model = fully_shard(world, net, soon);
    model(torch::ones({2, 11}) * world.rank()).backward();
  };
  for (const int ranks : {1, 2, 3})
    EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
      trains(world, make(), {});
      trains(world, on_meta(make), {});
      trains(world, world.rank() == 0 ? make() : on_meta(make), {});
      const auto net = make();
      if (world.rank() > 0)  // which module->to() cannot do
        for (const at::Tensor& param : net->parameters())
          param.unsafeGetTensorImpl()->shallow_copy_from(
              at::empty_like(param, torch::kMeta).getIntrusivePtr());
      trains(world, net, {.wrap = by_type_name({"Linear"})});
    }));
}

}  // namespace
}  // namespace fsdp::testing
