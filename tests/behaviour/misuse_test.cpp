// Promise: what would go wrong silently is answered in words, and the model can be used afterwards.
#include <ATen/autocast_mode.h>

#include <optional>
#include <sstream>

#include "behaviour/misuse_net.h"

namespace fsdp::testing {
namespace {

enum class Told { error, warning };
// What holds after it: training goes on to the same bits, or at all, or the module is beyond repair.
enum class After { unharmed, trains, broken };

struct Misuse {
  std::string name;
  std::function<void(Play&)> does;
  std::vector<std::string> words;  // all of them are said
  std::vector<int> ranks = {1, 2};
  Told told = Told::error;
  After after = After::unharmed;
  std::function<void(Play&)> undo = {};
};

const std::string kWays = "model.full_params()";

std::vector<Misuse> reads() {
  return {
      {"sum of a sharded parameter",
       [](Play& play) { play.module().first->weight.sum(); },
       {"first.weight", kWays}},
      {"printing it",
       [](Play& play) {
         std::ostringstream out;
         out << play.module().second->bias;
       },
       {"second.bias", kWays}},
      {"item of an element",
       [](Play& play) { play.module().head->weight[0][0].item<float>(); },
       {"head.weight", kWays}},
      {"forward of the module itself",
       [](Play& play) { play.module().forward(play.module().batch(0)); },
       {"table.weight", "model(...)"}},
      {"a view of it, read later",
       [](Play& play) {
         const Tensor view = play.module().first->weight.t();
         view.abs().sum();
       },
       {"first.weight", kWays}},
      {"a copy from it",
       [](Play& play) {
         torch::zeros({14, 12}).copy_(play.module().first->weight.detach());
       },
       {"first.weight", kWays}},
      {"data_ptr",
       [](Play& play) { play.module().first->weight.data_ptr<float>(); },
       {"first.weight", kWays},
       {2}},
      {"accessor",
       [](Play& play) { play.module().first->weight.accessor<float, 2>(); },
       {"first.weight", kWays},
       {2}},
      {"clone of a submodule",
       [](Play& play) { play.module().first->clone(); },
       {"first.", "clone()", kWays}},
      {"torch::save of the module",
       [](Play& play) {
         std::ostringstream out;
         torch::save(play.ptr(), out);
       },
       {"torch::save()", kWays},
       {2}},
      {"a norm of a parameter for logging",
       [](Play& play) { play.module().head->weight.detach().norm(); },
       {"head.weight", kWays}},
  };
}

std::vector<Misuse> optimizers() {
  return {
      {"SGD over module->parameters()",
       [](Play& play) {
         torch::optim::SGD wrong(play.module().parameters(), 0.1);
         play.loss().backward();
         wrong.step();
       },
       {"model.parameters()"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.zero_grad(); }},
      {"AdamW over module->parameters()",
       [](Play& play) {
         torch::optim::AdamW wrong(play.module().parameters(), torch::optim::AdamWOptions(0.1));
         play.loss().backward();
         wrong.step();
       },
       {"model.parameters()"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.zero_grad(); }},
      {"LBFGS over slices",
       [](Play& play) {
         torch::optim::LBFGS wrong(play.parameters());
         wrong.step([&] {
           play.zero_grad();
           const Tensor loss = play.loss();
           loss.backward();
           return loss;
         });
       },
       {"LBFGS", "AdamW"},
       {2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.zero_grad(); }},
      {"stock clip_grad_norm_ over slices",
       [](Play& play) {
         play.loss().backward();
         torch::nn::utils::clip_grad_norm_(play.parameters(), 1.0);
       },
       {"norm", "this rank", "model.clip_grad_norm_()"},
       {2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.zero_grad(); }},
      {"stock clip_grad_norm_ over module->parameters()",
       [](Play& play) {
         play.loss().backward();
         torch::nn::utils::clip_grad_norm_(play.module().parameters(), 1.0);
       },
       {"gradient of parameter", "model.parameters()"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.zero_grad(); }},
      {"stock clip_grad_norm_ over slices, the largest element",
       [](Play& play) {
         play.loss().backward();
         torch::nn::utils::clip_grad_norm_(play.parameters(), 1.0, INFINITY);
       },
       {"norm", "this rank", "model.clip_grad_norm_()"},
       {2, 3},
       Told::error,
       After::unharmed,
       [](Play& play) { play.zero_grad(); }},
      {"a norm of a parameter's slice, as LAMB takes it",
       [](Play& play) {
         const at::NoGradGuard no_grad;
         play.parameters()[1].norm();
       },
       {"norm", "this rank", "model.parameter_norms()"},
       {2, 3}},
      {"a norm of a slice's update, by its data",
       [](Play& play) { play.parameters()[1].data().norm(2); },
       {"norm", "this rank", "model.parameter_norms()"},
       {2}},
      {"torch::autograd::grad over parameters",
       [](Play& play) {
         torch::autograd::grad({play.loss()}, {play.module().first->weight, play.module().head->bias});
       },
       {"torch::autograd::grad", "backward()"}},
      {"a step between forward and backward",
       [](Play& play) {
         play.loss().backward();
         const Tensor loss = play.loss();
         play.optimizer->step();
         loss.backward();
       },
       {"modified by an inplace operation"},
       {1, 2},
       Told::error,
       After::trains,
       [](Play& play) { play.zero_grad(); }},
      {"a step between forward and backward of a lookup and one layer",
       [](Play& play) {
         const auto loss_of = [&] {
           return play.run([&](PlayNet& net) {
             return net.first(net.table(net.batch(play.world.rank())[0])).square().mean();
           });
         };
         loss_of().backward();
         const Tensor loss = loss_of();
         play.optimizer->step();
         loss.backward();
       },
       {"modified by an inplace operation"},
       {1, 2},
       Told::error,
       After::trains,
       [](Play& play) { play.zero_grad(); }},
  };
}

// Runs `act` inside forward.
std::function<void(Play&)> in_forward(const std::function<void(PlayNet&)>& act) {
  return [act](Play& play) {
    play.module().inside = act;
    play.loss();
  };
}

std::vector<Misuse> writes() {
  const auto calm = [](Play& play) { play.module().inside = nullptr; };
  const auto write = [calm](const std::string& name, const std::function<void(PlayNet&)>& act,
                            std::vector<std::string> words) {
    return Misuse{name, in_forward(act), std::move(words), {1, 2}, Told::error, After::unharmed, calm};
  };
  return {
      {"data_ptr inside forward",
       in_forward([](PlayNet& net) { net.first->weight.data_ptr<float>(); }),
       {"first.weight", "fsdp::use(tensor)"},
       {2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.module().inside = nullptr; }},
      write("clamp_ inside forward",
            [](PlayNet& net) {
              const at::NoGradGuard no_grad;
              net.first->weight.clamp_(-1, 1);
            },
            {"first.weight", "written inside forward", "full_params(true)"}),
      write("add_ inside forward",
            [](PlayNet& net) {
              const at::NoGradGuard no_grad;
              net.head->bias.add_(1);
            },
            {"head.bias", "written inside forward"}),
      write("a write through a view inside forward",
            [](PlayNet& net) {
              const at::NoGradGuard no_grad;
              net.first->weight.select(0, 1).zero_();
            },
            {"first.weight", "written inside forward"}),
      write("copy_ inside forward",
            [](PlayNet& net) {
              const at::NoGradGuard no_grad;
              net.second->weight.copy_(torch::ones({12, 14}));
            },
            {"second.weight", "written inside forward"}),
      write("out= into a parameter inside forward",
            [](PlayNet& net) {
              const at::NoGradGuard no_grad;
              at::add_out(net.second->bias, torch::ones({12}), torch::ones({12}));
            },
            {"second.bias", "written inside forward"}),
      write("_foreach_add_ inside forward",
            [](PlayNet& net) {
              const at::NoGradGuard no_grad;
              at::_foreach_mul_({net.first->weight, net.second->weight}, 0.5);
            },
            {"first.weight", "written inside forward"}),
      {"a parameter as values of a sparse tensor",
       in_forward([](PlayNet& net) {
         torch::sparse_coo_tensor(torch::arange(5).repeat({2, 1}), net.head->bias, {5, 5});
       }),
       {"head.bias", "clone()"},
       {2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.module().inside = nullptr; }},
      {"set_() to a parameter's memory",
       in_forward([](PlayNet& net) { torch::empty({0}).set_(net.head->bias.detach()); }),
       {"head.bias", "clone()"},
       {2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.module().inside = nullptr; }},
      {"an embedding's max_norm",
       [](Play& play) {
         play.module().table->options.max_norm(0.01);
         play.loss();
       },
       {"table.weight", "written inside forward"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.module().table->options.max_norm(std::nullopt); }},
      {"a write outside",
       [](Play& play) {
         const at::NoGradGuard no_grad;
         play.module().first->weight.zero_();
       },
       {"first.weight", kWays}},
  };
}

// What torch::load() finds.
std::string saved_net() {
  std::ostringstream out;
  torch::save(std::make_shared<PlayNet>(), out);
  return out.str();
}

std::vector<Misuse> changes() {
  return {
      {"torch::load of the module",
       [](Play& play) {
         std::istringstream in(saved_net());
         torch::load(play.ptr(), in);
       },
       {"table.weight", "torch::load()", "full_params(true)"}},
      {"set_() of a parameter",
       [](Play& play) {
         const at::NoGradGuard no_grad;
         play.module().first->weight.set_(torch::ones({14, 12}));
       },
       {"first.weight", "torch::load()", "full_params(true)"}},
      {"module->to(kDouble)", [](Play& play) { play.module().to(torch::kDouble); }, {"table.weight", kWays}},
      {"module->to(another device)",
       [](Play& play) { play.module().to(torch::Device(torch::kMeta)); },
       {"table.weight", kWays}},
      {"set_data",
       [](Play& play) {
         play.module().second->weight.set_data(torch::zeros({12, 14}));
         play.loss();
       },
       {"second.weight", "set_data()"},
       {1, 2},
       Told::error,
       After::broken},
      {"the model called inside full_params",
       [](Play& play) {
         const auto whole = play.full_params();
         play.loss();
       },
       {"inside full_params()", "end that scope"}},
      {"a backward inside full_params",
       [](Play& play) {
         const auto whole = play.full_params(true);
         play.module().forward(play.module().batch(0)).backward();
       },
       {"backward inside full_params()", "End that scope"}},
      {"set_data of a slice",
       [](Play& play) {
         Tensor slice = play.parameters()[1];
         slice.set_data(slice.clone());
         play.loss();
       },
       {"model.parameters()", "copy_()"},
       {1, 2},
       Told::error,
       After::broken},
      {"a use() that outlives its call",
       [](Play& play) {
         std::optional<Use> use;
         play.module().inside = [&](PlayNet& net) { use.emplace(net.first->weight); };
         play.loss().backward();
         play.module().inside = nullptr;
         play.loss();
       },
       {"use() scope", "'first'"},
       {2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.zero_grad(); }},
      {"zero_grad of the module",
       [](Play& play) {
         play.loss().backward();
         play.module().zero_grad();
         play.loss();
         play.zero_grad();
       },
       {"module->zero_grad()", "model.zero_grad()"},
       {1, 2},
       Told::warning},
      {"full_params inside forward",
       [](Play& play) {
         play.module().inside = [&play](PlayNet&) { const auto whole = play.full_params(); };
         play.loss();
       },
       {"full_params() inside a call of the model"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.module().inside = nullptr; }},
      {"an unknown name",
       [](Play& play) { play.parameter_info("first.wieght"); },
       {"'first.wieght'", "near names", "first.weight"}},
      {"a negative norm", [](Play& play) { play.clip_grad_norm_(1.0, -2.0); }, {"norm_type -2", "positive"}},
      {"an error of the user's own inside forward",
       in_forward([](PlayNet&) { throw std::runtime_error("the user's own words"); }),
       {"the user's own words"},
       {1, 2},
       Told::error,
       After::unharmed,
       [](Play& play) { play.module().inside = nullptr; }},
      {"autocast",
       [](Play& play) {
         at::autocast::set_autocast_enabled(at::kCPU, true);
         try {
           play.loss();
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
std::string told(const Misuse& misuse, Play& play) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  try {
    misuse.does(play);
  } catch (const c10::Error& error) {
    return misuse.told == Told::error ? error.what_without_backtrace() : "an error";
  } catch (const std::exception& error) {
    return misuse.told == Told::error ? error.what() : "an error";
  }
  return misuse.told == Told::warning ? warnings.text : "no error";
}

void commit(const Misuse& misuse, int ranks) {
  const State wanted = train_plain(*std::make_shared<PlayNet>(), ranks, 4, Optim::sgd);
  run_ranks(ranks, [&](World& world) {
    const ShardOptions options{.wrap = by_size(100), .comm = {.timeout = std::chrono::seconds(20)}};
    Play play(world, fully_shard(world, std::make_shared<PlayNet>(), options), optimizer_of(Optim::sgd));
    play.train();
    play.train();
    const std::string words = told(misuse, play);
    for (const std::string& word : misuse.words)
      require(words.find(word) != std::string::npos, "said '" + word + "'; it said: " + words);
    if (misuse.undo) misuse.undo(play);
    if (misuse.after == After::broken) return;
    play.train();
    play.train();
    const State state = state_of(play);
    if (misuse.after == After::unharmed) require_same(state, wanted, "unharmed: ");
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

}  // namespace
}  // namespace fsdp::testing
