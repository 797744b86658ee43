// Promise: what fully_shard() cannot shard is refused in words and left as it was; what looks like a mistake
// is warned of.
#include <chrono>
#include <cstdlib>

#include "behaviour/misuse_net.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

struct Refusal {
  std::string name;
  std::function<std::shared_ptr<void>(PlayNet&)> spoils;  // what it returns lives on
  ShardOptions options;
  std::vector<std::string> words;
  bool mendable = true;  // dropping what spoils() returned makes it a good module
};

template <class T>
std::shared_ptr<void> hold(T value) {
  return std::make_shared<T>(std::move(value));
}

std::vector<Refusal> refusals() {
  const auto nothing = [](PlayNet&) { return std::shared_ptr<void>(); };
  const auto with_parameter = [](const Tensor& tensor) {
    return [tensor](PlayNet& net) {
      net.register_parameter("odd", tensor.clone(), /*requires_grad=*/false);
      return std::shared_ptr<void>();
    };
  };
  return {
      {"a cached view",
       [](PlayNet& net) { return hold(net.second->weight.view({-1})); },
       {},
       {"second.weight", "cached view"}},
      {"a detached copy that shares memory",
       [](PlayNet& net) { return hold(net.head->bias.detach()); },
       {},
       {"head.bias", "shares its memory"}},
      {"a loss whose graph is alive",
       [](PlayNet& net) { return hold(net.forward(net.batch(0))); },
       {},
       {"autograd graph", "before fully_shard()"}},
      {"an unknown ignored path",
       nothing,
       {.ignored = {"secnd"}},
       {"ignored", "'secnd'", "near names", "second"}},
      {"a sparse parameter",
       with_parameter(torch::eye(6).to_sparse()),
       {},
       {"'odd'", "Sparse", "ignored"},
       false},
      {"a parameter of int32",
       with_parameter(torch::arange(6, torch::kInt)),
       {},
       {"'odd'", "Int", "ignored"},
       false},
      {"a quantized parameter",
       with_parameter(torch::quantize_per_tensor(torch::ones({6}), 0.1, 0, torch::kQInt8)),
       {},
       {"'odd'", "QInt8", "ignored"},
       false},
  };
}

// An error at fully_shard() leaves the module as it was.
TEST(MisuseRefusals, ARefusedModuleIsLeftAsItWas) {
  for (const Refusal& refusal : refusals())
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(refusal.name + ", " + std::to_string(ranks) + " ranks");
      EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
        const auto net = std::make_shared<PlayNet>();
        std::shared_ptr<void> spoiling = refusal.spoils(*net);
        const std::string words = testing::refusal([&] { fully_shard(world, net, refusal.options); });
        for (const std::string& word : refusal.words) require_words(words, word);
        spoiling = nullptr;
        net->forward(net->batch(world.rank())).backward();  // plain
        net->zero_grad();
        ShardOptions options;
        if (!refusal.mendable) options.ignored = {"odd"};
        auto model = fully_shard(world, net, options);
        model(net->batch(world.rank())).backward();
      }));
    }
}

// A graph that has saved the parameter itself, and no view of it, cannot be seen when a model is sharded.
TEST(MisuseRefusals, ABackwardThroughAGraphFromBeforeIsRefused) {
  for (const int ranks : {1, 2})
    EXPECT_NO_THROW(run_ranks(ranks, [](World& world) {
      const auto net = std::make_shared<PlayNet>();
      const Tensor loss = (net->second->bias * net->second->bias).sum();
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(net));
      const std::string words = refusal([&] { loss.backward(); });
      require_words(words, "'second.bias'");
      require_words(words, "before fully_shard()");
      train_sharded(model, world, 2, Optim::sgd);
    }));
}

// A loss that is kept after its backward holds nothing any more.
TEST(MisuseRefusals, ALossKeptFromBeforeIsNoMistake) {
  const State wanted = train_plain(*std::make_shared<PlayNet>(), 2, 3, Optim::sgd);
  EXPECT_NO_THROW(run_ranks(2, [&](World& world) {
    const auto net = std::make_shared<PlayNet>();
    const Tensor kept = net->forward(net->batch(7));
    kept.backward();
    net->zero_grad();
    auto model = fully_shard(world, std::static_pointer_cast<Learner>(net));
    train_sharded(model, world, 3, Optim::sgd);
    require_same(state_of(model), wanted);
  }));
}

TEST(MisuseRefusals, AModuleWithoutParametersIsRefused) {
  struct Empty : torch::nn::Module {
    Tensor forward(const Tensor& x) { return x; }
  };
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      require_words(refusal([&] { fully_shard(world, std::make_shared<Empty>()); }), "no parameters");
    });
}

// One rank refuses: the others are told, they do not wait for it until the timeout.
TEST(MisuseRefusals, OneRankRefusesAndTheOthersAreTold) {
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(2, [](World& world) {
    const auto net = std::make_shared<PlayNet>();
    const Tensor view = world.rank() == 1 ? net->second->weight.view({-1}) : Tensor();
    std::string words = "nothing";
    try {
      fully_shard(world, net);
    } catch (const c10::Error& error) {
      words = error.what_without_backtrace();
    } catch (const CommError& error) {
      words = error.what();
    }
    require(words.find(world.rank() == 1 ? "second.weight" : "rank 1") != std::string::npos, words);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

// --- equal batches

// How often stderr was warned of equal batches, in two forwards of `mode`.
enum class Batches { equal, different };
using AsMode = std::function<void(const std::function<void()>&)>;

int warnings_of_first_batch(Batches batches, bool as_list, const AsMode& mode) {
  struct TwoInputs : PlayNet {
    Tensor forward(const Tensor& x, const Tensor& y) { return PlayNet::forward({x, y}); }
  };
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](World& world) {
    const auto net = std::make_shared<TwoInputs>();
    const auto batch = net->batch(batches == Batches::equal ? 5 : world.rank());
    if (as_list) {
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(net));
      for (int i = 0; i < 2; ++i) mode([&] { model(batch); });
    } else {
      auto model = fully_shard(world, net);
      for (int i = 0; i < 2; ++i) mode([&] { model(batch[0], batch[1]); });
    }
  });
  const std::string heard = ::testing::internal::GetCapturedStderr();
  int count = 0;
  for (size_t at = heard.find("same first batch"); at != std::string::npos;
       at = heard.find("same first batch", at + 1))
    ++count;
  return count;
}

// One line of rank 0, which FSDP_LOG=error silences (sharding.misuse_silent).
TEST(MisuseRefusals, EqualFirstBatchesAreNoticedOnce) {
  const char* log = std::getenv("FSDP_LOG");
  const int wanted = log != nullptr && std::string(log) == "error" ? 0 : 1;
  const AsMode training = [](const auto& forward) { forward(); };
  for (const bool as_list : {false, true}) {
    EXPECT_EQ(warnings_of_first_batch(Batches::equal, as_list, training), wanted);
    EXPECT_EQ(warnings_of_first_batch(Batches::different, as_list, training), 0);
  }
}

TEST(MisuseRefusals, EqualBatchesWithoutGradientsAreNoMistake) {
  EXPECT_EQ(warnings_of_first_batch(Batches::equal, false,
                                    [](const auto& forward) {
                                      const at::NoGradGuard no_grad;
                                      forward();
                                    }),
            0);
  EXPECT_EQ(warnings_of_first_batch(Batches::equal, false,
                                    [](const auto& forward) {
                                      const c10::InferenceMode inference;
                                      forward();
                                    }),
            0);
}

// An evaluation before the first step does not use the warning up.
TEST(MisuseRefusals, TheFirstBatchWithGradientsIsTheOneThatCounts) {
  const char* log = std::getenv("FSDP_LOG");
  const int wanted = log != nullptr && std::string(log) == "error" ? 0 : 1;
  EXPECT_EQ(warnings_of_first_batch(Batches::equal, false,
                                    [](const auto& forward) {
                                      {
                                        const at::NoGradGuard no_grad;
                                        forward();
                                      }
                                      forward();
                                    }),
            wanted);
}

std::string warnings_of_wrapping(const WrapPolicy& wrap) {
  Warnings warnings;
  run_ranks(1, [&](World& world) {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    const auto model = fully_shard(world, std::make_shared<PlayNet>(), {.wrap = wrap});
  });
  return warnings.text;
}

TEST(MisuseRefusals, APolicyThatChoosesNothingIsNoticed) {
  EXPECT_THAT(warnings_of_wrapping(by_type_name({"Liner"})), HasSubstr("chose no module"));
  EXPECT_EQ(warnings_of_wrapping(by_type_name({"Linear"})), "");
  EXPECT_EQ(warnings_of_wrapping(whole_model()), "");
  EXPECT_EQ(warnings_of_wrapping({}), "");
}

}  // namespace
}  // namespace fsdp::testing
