// Promise: what would go wrong silently is answered in words, and the model can be used afterwards.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>

#include <chrono>
#include <mutex>
#include <sstream>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

// A net whose forward can be told to do something else first.
struct Net : Learner {
  Net() {
    const SeededHere seeded(11);
    table = register_module("table", torch::nn::Embedding(9, 12));
    first = register_module("first", torch::nn::Linear(12, 14));
    second = register_module("second", torch::nn::Linear(14, 12));
    head = register_module("head", torch::nn::Linear(12, 5));
  }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(70 + index));
    return {torch::randint(9, {6}, gen), torch::randn({6, 5}, gen)};
  }
  Tensor forward(const std::vector<Tensor>& batch) override {
    if (inside) inside(*this);
    auto x = table(batch[0]);
    x = swapped ? first(second(x.narrow(1, 0, 12).matmul(torch::ones({12, 14}))).tanh())
                : second(first(x).tanh());
    if (swapped) x = x.narrow(1, 0, 12);
    return torch::mse_loss(head(x), batch[1]);
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr}, head{nullptr};
  std::function<void(Net&)> inside;
  bool swapped = false;
};

// Everything a user has in hand.
struct Scene {
  World& world;
  std::shared_ptr<Net> net;
  Sharded<Learner>& model;
  torch::optim::Optimizer& optimizer;
  int step = 0;

  Tensor loss() { return model(net->batch(step * world.size() + world.rank())); }
  void train() {
    loss().backward();
    optimizer.step();
    optimizer.zero_grad();
    ++step;
  }
};

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;
};

enum class Told { error, warning };
// What holds after it: training goes on to the same bits, or at all, or the module is beyond repair.
enum class After { unharmed, trains, broken };

struct Misuse {
  std::string name;
  std::function<void(Scene&)> does;
  std::vector<std::string> words;  // all of them are said
  std::vector<int> ranks = {1, 2};
  Told told = Told::error;
  After after = After::unharmed;
  std::function<void(Scene&)> undo = {};
};

const std::string kWays = "model.full_params()";

std::vector<Misuse> reads() {
  return {
      {"sum of a sharded parameter", [](Scene& s) { s.net->first->weight.sum(); }, {"first.weight", kWays}},
      {"printing it",
       [](Scene& s) {
         std::ostringstream out;
         out << s.net->second->bias;
       },
       {"second.bias", kWays}},
      {"item of an element",
       [](Scene& s) { s.net->head->weight[0][0].item<float>(); },
       {"head.weight", kWays}},
      {"forward of the module itself",
       [](Scene& s) { s.net->forward(s.net->batch(0)); },
       {"table.weight", "model(...)"}},
      {"a view of it, read later",
       [](Scene& s) {
         const Tensor view = s.net->first->weight.t();
         view.abs().sum();
       },
       {"first.weight", kWays}},
      {"a copy from it",
       [](Scene& s) {
         torch::zeros({14, 12}).copy_(s.net->first->weight.detach());
       },
       {"first.weight", kWays}},
      {"data_ptr", [](Scene& s) { s.net->first->weight.data_ptr<float>(); }, {"first.weight", kWays}, {2}},
      {"accessor", [](Scene& s) { s.net->first->weight.accessor<float, 2>(); }, {"first.weight", kWays}, {2}},
      {"clone of a submodule", [](Scene& s) { s.net->first->clone(); }, {"first.", "clone()", kWays}},
      {"torch::save of the module",
       [](Scene& s) {
         std::ostringstream out;
         torch::save(s.net, out);
       },
       {"torch::save()", kWays},
       {2}},
      {"a norm of a parameter for logging",
       [](Scene& s) { s.net->head->weight.detach().norm(); },
       {"head.weight", kWays}},
  };
}

std::vector<Misuse> optimizers() {
  return {
      {"SGD over module->parameters()",
       [](Scene& s) {
         torch::optim::SGD wrong(s.net->parameters(), 0.1);
         s.loss().backward();
         wrong.step();
       },
       {"model.parameters()"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.model.zero_grad(); }},
      {"AdamW over module->parameters()",
       [](Scene& s) {
         torch::optim::AdamW wrong(s.net->parameters(), torch::optim::AdamWOptions(0.1));
         s.loss().backward();
         wrong.step();
       },
       {"model.parameters()"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.model.zero_grad(); }},
      {"LBFGS over slices",
       [](Scene& s) {
         torch::optim::LBFGS wrong(s.model.parameters());
         wrong.step([&] {
           s.model.zero_grad();
           const Tensor loss = s.loss();
           loss.backward();
           return loss;
         });
       },
       {"LBFGS", "AdamW"},
       {2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.model.zero_grad(); }},
      {"stock clip_grad_norm_ over slices",
       [](Scene& s) {
         s.loss().backward();
         torch::nn::utils::clip_grad_norm_(s.model.parameters(), 1.0);
       },
       {"norm", "this rank", "model.clip_grad_norm_()"},
       {2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.model.zero_grad(); }},
      {"stock clip_grad_norm_ over module->parameters()",
       [](Scene& s) {
         s.loss().backward();
         torch::nn::utils::clip_grad_norm_(s.net->parameters(), 1.0);
       },
       {"gradient of parameter", "model.parameters()"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.model.zero_grad(); }},
      {"torch::autograd::grad over parameters",
       [](Scene& s) {
         torch::autograd::grad({s.loss()}, {s.net->first->weight, s.net->head->bias});
       },
       {"torch::autograd::grad", "backward()"}},
      {"a step between forward and backward",
       [](Scene& s) {
         s.loss().backward();
         const Tensor loss = s.loss();
         s.optimizer.step();
         loss.backward();
       },
       {"modified by an inplace operation"},
       {1, 2},
       Told::error,
       After::trains,
       [](Scene& s) { s.model.zero_grad(); }},
      {"a step between forward and backward of a lookup and one layer",
       [](Scene& s) {
         const auto loss_of = [&] {
           return s.model.run([&](Learner&) {
             return s.net->first(s.net->table(s.net->batch(s.world.rank())[0])).square().mean();
           });
         };
         loss_of().backward();
         const Tensor loss = loss_of();
         s.optimizer.step();
         loss.backward();
       },
       {"modified by an inplace operation"},
       {1, 2},
       Told::error,
       After::trains,
       [](Scene& s) { s.model.zero_grad(); }},
  };
}

// Runs `act` inside forward.
std::function<void(Scene&)> in_forward(const std::function<void(Net&)>& act) {
  return [act](Scene& s) {
    s.net->inside = act;
    s.loss();
  };
}

std::vector<Misuse> writes() {
  const auto calm = [](Scene& s) { s.net->inside = nullptr; };
  const auto write = [calm](const std::string& name, const std::function<void(Net&)>& act,
                            std::vector<std::string> words) {
    return Misuse{name, in_forward(act), std::move(words), {1, 2}, Told::error, After::unharmed, calm};
  };
  return {
      write("clamp_ inside forward",
            [](Net& net) {
              const at::NoGradGuard no_grad;
              net.first->weight.clamp_(-1, 1);
            },
            {"first.weight", "written inside forward", "full_params(true)"}),
      write("add_ inside forward",
            [](Net& net) {
              const at::NoGradGuard no_grad;
              net.head->bias.add_(1);
            },
            {"head.bias", "written inside forward"}),
      write("a write through a view inside forward",
            [](Net& net) {
              const at::NoGradGuard no_grad;
              net.first->weight.select(0, 1).zero_();
            },
            {"first.weight", "written inside forward"}),
      write("copy_ inside forward",
            [](Net& net) {
              const at::NoGradGuard no_grad;
              net.second->weight.copy_(torch::ones({12, 14}));
            },
            {"second.weight", "written inside forward"}),
      write("out= into a parameter inside forward",
            [](Net& net) {
              const at::NoGradGuard no_grad;
              at::add_out(net.second->bias, torch::ones({12}), torch::ones({12}));
            },
            {"second.bias", "written inside forward"}),
      write("_foreach_add_ inside forward",
            [](Net& net) {
              const at::NoGradGuard no_grad;
              at::_foreach_mul_({net.first->weight, net.second->weight}, 0.5);
            },
            {"first.weight", "written inside forward"}),
      {"an embedding's max_norm",
       [](Scene& s) {
         s.net->table->options.max_norm(0.01);
         s.loss();
       },
       {"table.weight", "written inside forward"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.net->table->options.max_norm(std::nullopt); }},
      {"a write outside",
       [](Scene& s) {
         const at::NoGradGuard no_grad;
         s.net->first->weight.zero_();
       },
       {"first.weight", kWays}},
  };
}

std::vector<Misuse> changes() {
  return {
      {"module->to(kDouble)", [](Scene& s) { s.net->to(torch::kDouble); }, {"table.weight", kWays}},
      {"module->to(another device)",
       [](Scene& s) { s.net->to(torch::Device(torch::kMeta)); },
       {"incompatible tensor type"}},  // LibTorch's own words
      {"requires_grad changed",
       [](Scene& s) {
         s.net->first->weight.set_requires_grad(false);
         s.loss();
       },
       {"requires_grad", "first.weight", "fully_shard()"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.net->first->weight.set_requires_grad(true); }},
      {"set_data",
       [](Scene& s) {
         s.net->second->weight.set_data(torch::zeros({12, 14}));
         s.loss();
       },
       {"second.weight", "set_data()"},
       {1, 2},
       Told::error,
       After::broken},
      {"the model called inside full_params",
       [](Scene& s) {
         const auto whole = s.model.full_params();
         s.loss();
       },
       {"inside full_params()", "end that scope"}},
      {"full_params inside full_params",
       [](Scene& s) {
         const auto whole = s.model.full_params();
         const auto again = s.model.full_params();
       },
       {"full_params() inside full_params()"}},
      {"full_params inside forward",
       [](Scene& s) {
         s.net->inside = [&s](Net&) { const auto whole = s.model.full_params(); };
         s.loss();
       },
       {"full_params() inside a call of the model"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.net->inside = nullptr; }},
      {"an unknown name",
       [](Scene& s) { s.model.parameter_info("first.wieght"); },
       {"'first.wieght'", "near names", "first.weight"}},
      {"a negative norm", [](Scene& s) { s.model.clip_grad_norm_(1.0, -2.0); }, {"norm_type -2", "positive"}},
      {"an error of the user's own inside forward",
       in_forward([](Net&) { throw std::runtime_error("the user's own words"); }),
       {"the user's own words"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.net->inside = nullptr; }},
      {"autocast",
       [](Scene& s) {
         at::autocast::set_autocast_enabled(at::kCPU, true);
         try {
           s.loss();
         } catch (...) {
           at::autocast::set_autocast_enabled(at::kCPU, false);
           throw;
         }
         at::autocast::set_autocast_enabled(at::kCPU, false);
         at::autocast::clear_cache();
       },
       {"autocast", "precision", "fsdp::bf16()"},
       {1, 2},
       Told::warning},
  };
}

// What a rank was told: an error's words, or the warnings.
std::string told(const Misuse& misuse, Scene& scene) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  try {
    misuse.does(scene);
  } catch (const c10::Error& error) {
    return misuse.told == Told::error ? error.what_without_backtrace() : "an error";
  } catch (const std::exception& error) {
    return misuse.told == Told::error ? error.what() : "an error";
  }
  return misuse.told == Told::warning ? warnings.text : "no error";
}

void commit(const Misuse& misuse, int ranks) {
  const State wanted = train_plain(*std::make_shared<Net>(), ranks, 4, Optim::sgd);
  std::vector<std::shared_ptr<Net>> nets;
  for (int r = 0; r < ranks; ++r) nets.push_back(std::make_shared<Net>());
  run_ranks(ranks, [&](World& world) {
    const auto net = nets[static_cast<size_t>(world.rank())];
    auto model = fully_shard(world, std::static_pointer_cast<Learner>(net),
                             {.wrap = by_size(100), .comm = {.timeout = std::chrono::seconds(20)}});
    const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
    Scene scene{world, net, model, *optimizer};
    scene.train();
    scene.train();
    const std::string words = told(misuse, scene);
    for (const std::string& word : misuse.words)
      require(words.find(word) != std::string::npos, "said '" + word + "'; it said: " + words);
    if (misuse.undo) misuse.undo(scene);
    if (misuse.after == After::broken) return;
    scene.train();
    scene.train();
    const State state = state_of(model);
    if (misuse.after == After::unharmed)
      require(difference(state, wanted).empty(), "unharmed: " + difference(state, wanted));
    for (const auto& [name, value] : state) require(value.isfinite().all().item<bool>(), name + " is finite");
  });
}

TEST(Misuse, IsAnsweredInWordsAndTrainingGoesOn) {
  c10::WarningUtils::set_warnAlways(true);
  for (const auto& table : {reads(), optimizers(), writes(), changes()})
    for (const Misuse& misuse : table)
      for (const int ranks : misuse.ranks) {
        SCOPED_TRACE(misuse.name + ", " + std::to_string(ranks) + " ranks");
        EXPECT_NO_THROW(commit(misuse, ranks));
      }
  c10::WarningUtils::set_warnAlways(false);
}

// --- what fully_shard() refuses

struct Refusal {
  std::string name;
  std::function<std::shared_ptr<void>(Net&)> spoils;  // what it returns lives on
  ShardOptions options;
  std::vector<std::string> words;
  bool mendable = true;  // dropping what spoils() returned makes it a good module
};

template <class T>
std::shared_ptr<void> hold(T value) {
  return std::make_shared<T>(std::move(value));
}

std::vector<Refusal> refusals() {
  const auto nothing = [](Net&) { return std::shared_ptr<void>(); };
  const auto with_parameter = [](const Tensor& tensor) {
    return [tensor](Net& net) {
      net.register_parameter("odd", tensor.clone(), /*requires_grad=*/false);
      return std::shared_ptr<void>();
    };
  };
  return {
      {"a cached view",
       [](Net& net) { return hold(net.second->weight.view({-1})); },
       {},
       {"second.weight", "cached view"}},
      {"a detached copy that shares memory",
       [](Net& net) { return hold(net.head->bias.detach()); },
       {},
       {"head.bias", "shares its memory"}},
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
      {"a complex parameter",
       with_parameter(torch::ones({6}, torch::kComplexFloat)),
       {},
       {"'odd'", "ComplexFloat", "ignored"},
       false},
      {"a quantized parameter",
       with_parameter(torch::quantize_per_tensor(torch::ones({6}), 0.1, 0, torch::kQInt8)),
       {},
       {"'odd'", "QInt8", "ignored"},
       false},
  };
}

// An error at fully_shard() leaves the module as it was.
TEST(Misuse, ARefusedModuleIsLeftAsItWas) {
  for (const Refusal& refusal : refusals())
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(refusal.name + ", " + std::to_string(ranks) + " ranks");
      EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
        const auto net = std::make_shared<Net>();
        std::shared_ptr<void> spoiling = refusal.spoils(*net);
        std::string words = "nothing";
        try {
          fully_shard(world, net, refusal.options);
        } catch (const c10::Error& error) {
          words = error.what_without_backtrace();
        }
        for (const std::string& word : refusal.words)
          require(words.find(word) != std::string::npos, "said '" + word + "'; it said: " + words);
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

TEST(Misuse, AModuleWithoutParametersIsRefused) {
  struct Empty : torch::nn::Module {
    Tensor forward(const Tensor& x) { return x; }
  };
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      std::string words = "nothing";
      try {
        fully_shard(world, std::make_shared<Empty>());
      } catch (const c10::Error& error) {
        words = error.what_without_backtrace();
      }
      require(words.find("no parameters") != std::string::npos, words);
    });
}

// One rank refuses: the others are told, they do not wait for it until the timeout.
TEST(Misuse, OneRankRefusesAndTheOthersAreTold) {
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(2, [](World& world) {
    const auto net = std::make_shared<Net>();
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

std::string warnings_of_first_batch(bool equal, bool as_list) {
  struct TwoInputs : Net {
    Tensor forward(const Tensor& x, const Tensor& y) { return Net::forward({x, y}); }
  };
  std::string heard;
  std::mutex mutex;
  run_ranks(2, [&](World& world) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    const auto net = std::make_shared<TwoInputs>();
    const auto batch = net->batch(equal ? 5 : world.rank());
    if (as_list) {
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(net));
      model(batch).backward();
      model(batch).backward();
    } else {
      auto model = fully_shard(world, net);
      model(batch[0], batch[1]).backward();
      model(batch[0], batch[1]).backward();
    }
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) heard = warnings.text;
  });
  return heard;
}

TEST(Misuse, EqualFirstBatchesAreNoticed) {
  EXPECT_THAT(warnings_of_first_batch(true, false), HasSubstr("same first batch"));
  EXPECT_EQ(warnings_of_first_batch(false, false), "");
}

TEST(Misuse, EqualFirstBatchesAreNoticedInsideContainers) {
  EXPECT_THAT(warnings_of_first_batch(true, true), HasSubstr("same first batch"));
  EXPECT_EQ(warnings_of_first_batch(false, true), "");
}

// --- ranks that go different ways: an error on every rank, in seconds

constexpr auto kSoon = std::chrono::seconds(5);

struct Divergence {
  std::string name;
  std::function<void(Scene&)> does;  // every rank; rank 1 goes its own way in it
  std::vector<std::string> words;    // every rank is told
  std::vector<int> ranks = {2, 3};
};

std::vector<Divergence> divergences() {
  return {
      {"another order of units",
       [](Scene& s) {
         s.net->swapped = s.world.rank() == 1;
         s.loss().backward();
       },
       {"'first'", "'second'", "rank 1"}},
      {"a skipped backward",
       [](Scene& s) {
         if (s.world.rank() == 1)
           s.loss();
         else
           s.loss().backward();
         s.loss().backward();
       },
       {"rank 1"}},
      {"a skipped backward, then an evaluation",
       [](Scene& s) {
         const Tensor loss = s.loss();
         if (s.world.rank() != 1) loss.backward();
         const at::NoGradGuard no_grad;
         s.loss();
         s.loss();
       },
       {"rank 1"}},
      {"a skipped step's forward and backward",
       [](Scene& s) {
         if (s.world.rank() != 1) s.loss().backward();
         const auto whole = s.model.full_params();
       },
       {"rank 1"}},
      {"an error on one rank only, after which it goes on",
       [](Scene& s) {
         if (s.world.rank() == 1) s.net->inside = [](Net&) { throw std::runtime_error("a bad batch"); };
         try {
           s.loss().backward();
         } catch (const CommError&) {
           throw;
         } catch (const std::runtime_error&) {
           s.net->inside = nullptr;
           const auto whole = s.model.full_params();
         }
       },
       {"rank 1"}},
      {"clipping on one rank only",
       [](Scene& s) {
         s.loss().backward();
         if (s.world.rank() == 1) s.model.clip_grad_norm_(1.0);
         s.loss().backward();
       },
       {"clip_grad_norm_", "rank 1"}},
      {"no_sync on one rank only",
       [](Scene& s) {
         if (s.world.rank() == 1) {
           const auto kept = s.model.no_sync();
           s.loss().backward();
         } else {
           s.loss().backward();
         }
         s.loss().backward();
       },
       {"rank 1"}},
  };
}

TEST(Misuse, RanksThatGoDifferentWaysAreToldSoon) {
  for (const Divergence& one : divergences())
    for (const int warm_up : {0, 3})  // on demand, and by plan
      for (const int ranks : one.ranks) {
        SCOPED_TRACE(one.name + ", " + std::to_string(ranks) + " ranks, after " + std::to_string(warm_up) +
                     " steps");
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
          const auto net = std::make_shared<Net>();
          auto model = fully_shard(world, std::static_pointer_cast<Learner>(net),
                                   {.wrap = by_size(100), .comm = {.timeout = std::chrono::seconds(6)}});
          const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
          Scene scene{world, net, model, *optimizer};
          for (int i = 0; i < warm_up; ++i) scene.train();
          std::string words = "nothing";
          try {
            one.does(scene);
          } catch (const CommError& error) {
            words = error.what();
          } catch (const c10::Error& error) {
            words = std::string("as c10::Error: ") + error.what_without_backtrace();
          }
          const std::string who = "rank " + std::to_string(world.rank()) + " heard: " + words;
          for (const std::string& word : one.words)
            require(words.find(word) != std::string::npos, "'" + word + "'; " + who);
          require(model.last_error() != nullptr || words.rfind("as c10", 0) != 0,
                  "last_error() has it; " + who);
        }));
        EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
      }
}

}  // namespace
}  // namespace fsdp::testing
