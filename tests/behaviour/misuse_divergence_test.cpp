// Promise: ranks that go different ways get an error on every rank, in seconds, that names both ways.
#include <chrono>

#include "behaviour/misuse_net.h"
#include "support/gloo.h"

namespace fsdp::testing {
namespace {

constexpr auto kSoon = std::chrono::seconds(5);

struct Divergence {
  std::string name;
  std::function<void(Play&)> does;  // every rank; rank 1 goes its own way in it
  std::vector<std::string> words;   // every rank is told
  std::vector<int> ranks = {2, 3};
};

std::vector<Divergence> divergences() {
  return {
      {"another order of units",
       [](Play& play) {
         play.module().swapped = play.world.rank() == 1;
         play.loss().backward();
       },
       {"'first'", "'second'", "rank 1"}},
      {"a skipped backward",
       [](Play& play) {
         if (play.world.rank() == 1)
           play.loss();
         else
           play.loss().backward();
         play.loss().backward();
       },
       {"rank 1"}},
      {"a skipped backward, then an evaluation",
       [](Play& play) {
         const Tensor loss = play.loss();
         if (play.world.rank() != 1) loss.backward();
         const at::NoGradGuard no_grad;
         play.loss();
         play.loss();
       },
       {"rank 1"}},
      {"a skipped step's forward and backward",
       [](Play& play) {
         if (play.world.rank() != 1) play.loss().backward();
         const auto whole = play.full_params();
       },
       {"rank 1"}},
      {"an error on one rank only, after which it goes on",
       [](Play& play) {
         if (play.world.rank() == 1)
           play.module().inside = [](PlayNet&) { throw std::runtime_error("a bad batch"); };
         try {
           play.loss().backward();
         } catch (const CommError&) {
           throw;
         } catch (const std::runtime_error&) {
           play.module().inside = nullptr;
           const auto whole = play.full_params();
         }
       },
       {"rank 1"}},
      {"clipping on one rank only",
       [](Play& play) {
         play.loss().backward();
         if (play.world.rank() == 1) play.clip_grad_norm_(1.0);
         play.loss().backward();
       },
       {"clip_grad_norm_", "rank 1"}},
      {"no_sync on one rank only",
       [](Play& play) {
         if (play.world.rank() == 1) {
           const auto kept = play.no_sync();
           play.loss().backward();
         } else {
           play.loss().backward();
         }
         play.loss().backward();
       },
       {"rank 1"}},
  };
}

TEST(MisuseDivergence, RanksThatGoDifferentWaysAreToldSoon) {
  for (const Divergence& one : divergences())
    for (const int warm_up : {0, 3})  // on demand, and by plan
      for (const int ranks : one.ranks) {
        SCOPED_TRACE(one.name + ", " + std::to_string(ranks) + " ranks, after " + std::to_string(warm_up) +
                     " steps");
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
          const ShardOptions options{.wrap = by_size(100), .comm = {.timeout = std::chrono::seconds(6)}};
          Play play(world, fully_shard(world, std::make_shared<PlayNet>(), options),
                    optimizer_of(Optim::sgd));
          for (int i = 0; i < warm_up; ++i) play.train();
          std::string words = "nothing";
          try {
            one.does(play);
          } catch (const CommError& error) {
            words = error.what();
          } catch (const c10::Error& error) {
            words = std::string("as c10::Error: ") + error.what_without_backtrace();
          }
          const std::string who = "rank " + std::to_string(world.rank()) + " heard: " + words;
          for (const std::string& word : one.words)
            require(words.find(word) != std::string::npos, "'" + word + "'; " + who);
          require(play.last_error() != nullptr || words.rfind("as c10", 0) != 0,
                  "last_error() has it; " + who);
        }));
        EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
      }
}

// Two units of one size: nothing but their names tells them apart.
struct Twins : Learner {
  Twins() {
    const SeededHere seeded(3);
    left = register_module("left", torch::nn::Linear(8, 8));
    right = register_module("right", torch::nn::Linear(8, 8));
  }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
    return {torch::randn({4, 8}, gen)};
  }
  Tensor forward(const std::vector<Tensor>& batch) override {
    return (swapped ? left(right(batch[0])) : right(left(batch[0]))).square().sum();
  }
  torch::nn::Linear left{nullptr}, right{nullptr};
  bool swapped = false;
};

// On a backend that moves bytes between whatever calls meet. A GPU's ranks may hear of it a few steps later.
void go_different_ways(World& world, int warm_up, const CommOptions& comm, int steps) {
  const auto twins = std::make_shared<Twins>();
  auto model = fully_shard(world, std::static_pointer_cast<Learner>(twins),
                           {.wrap = by_type_name({"Linear"}), .comm = comm});
  const auto batch = twins->batch_on(world.rank(), world.device());
  for (int i = 0; i < warm_up; ++i) model(batch).backward();
  twins->swapped = world.rank() == 1;
  std::string words = "nothing";
  try {
    for (int i = 0; i < steps; ++i) model(batch).backward();
  } catch (const CommError& error) {
    words = error.what();
  }
  for (const char* word : {"rank 1", "left", "right"})
    require(words.find(word) != std::string::npos, std::string(word) + " is named, not: " + words);
}

TEST(MisuseDivergence, IsFoundBeforeTheOptimizerStepWhereTheBackendDoesNotCompare) {
  if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  const CommOptions gloo{
      .backend = BackendKind::c10d, .timeout = std::chrono::seconds(10), .c10d = make_gloo};
  for (const int warm_up : {0, 3})
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, after " + std::to_string(warm_up) + " steps");
      EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) { go_different_ways(world, warm_up, gloo, 1); }));
    }
}

TEST(GpuDivergence, IsFoundThoughNcclDoesNotCompare) {
  for (const int warm_up : {0, 3})
    run_on_gpus(2, [&](World& world) {
      go_different_ways(world, warm_up, {.timeout = std::chrono::seconds(20)}, warm_up == 0 ? 1 : 50);
    });
}

}  // namespace
}  // namespace fsdp::testing
