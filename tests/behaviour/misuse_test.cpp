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
      {"stock clip_grad_norm_ over slices, the largest element",
       [](Scene& s) {
         s.loss().backward();
         torch::nn::utils::clip_grad_norm_(s.model.parameters(), 1.0, INFINITY);
       },
       {"norm", "this rank", "model.clip_grad_norm_()"},
       {2, 3},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.model.zero_grad(); }},
      {"a norm of a parameter's slice, as LAMB takes it",
       [](Scene& s) {
         const at::NoGradGuard no_grad;
         s.model.parameters()[1].norm();
       },
       {"norm", "this rank", "model.parameter_norms()"},
       {2, 3}},
      {"a norm of a slice's update, by its data",
       [](Scene& s) { s.model.parameters()[1].data().norm(2); },
       {"norm", "this rank", "model.parameter_norms()"},
       {2}},
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
std::function<void(Scene&)> in_forward(const std::function<void(PlayNet&)>& act) {
  return [act](Scene& s) {
    s.net->inside = act;
    s.loss();
  };
}

std::vector<Misuse> writes() {
  const auto calm = [](Scene& s) { s.net->inside = nullptr; };
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
       [](Scene& s) { s.net->inside = nullptr; }},
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
       [](Scene& s) { s.net->inside = nullptr; }},
      {"set_() to a parameter's memory",
       in_forward([](PlayNet& net) { torch::empty({0}).set_(net.head->bias.detach()); }),
       {"head.bias", "clone()"},
       {2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.net->inside = nullptr; }},
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

// What torch::load() finds.
std::string saved_net() {
  std::ostringstream out;
  torch::save(std::make_shared<PlayNet>(), out);
  return out.str();
}

std::vector<Misuse> changes() {
  return {
      {"torch::load of the module",
       [](Scene& s) {
         std::istringstream in(saved_net());
         torch::load(s.net, in);
       },
       {"table.weight", "torch::load()", "full_params(true)"}},
      {"set_() of a parameter",
       [](Scene& s) {
         const at::NoGradGuard no_grad;
         s.net->first->weight.set_(torch::ones({14, 12}));
       },
       {"first.weight", "torch::load()", "full_params(true)"}},
      {"module->to(kDouble)", [](Scene& s) { s.net->to(torch::kDouble); }, {"table.weight", kWays}},
      {"module->to(another device)",
       [](Scene& s) { s.net->to(torch::Device(torch::kMeta)); },
       {"table.weight", kWays}},
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
      {"a backward inside full_params",
       [](Scene& s) {
         const auto whole = s.model.full_params(true);
         s.net->forward(s.net->batch(0)).backward();
       },
       {"backward inside full_params()", "End that scope"}},
      {"set_data of a slice",
       [](Scene& s) {
         Tensor slice = s.model.parameters()[1];
         slice.set_data(slice.clone());
         s.loss();
       },
       {"model.parameters()", "copy_()"},
       {1, 2},
       Told::error,
       After::broken},
      {"a use() that outlives its call",
       [](Scene& s) {
         std::optional<Use> use;
         s.net->inside = [&](PlayNet& net) { use.emplace(net.first->weight); };
         s.loss().backward();
         s.net->inside = nullptr;
         s.loss();
       },
       {"use() scope", "'first'"},
       {2},
       Told::error,
       After::unharmed,
       [](Scene& s) { s.model.zero_grad(); }},
      {"zero_grad of the module",
       [](Scene& s) {
         s.loss().backward();
         s.net->zero_grad();
         s.loss();
         s.model.zero_grad();
       },
       {"module->zero_grad()", "model.zero_grad()"},
       {1, 2},
       Told::warning},
      {"full_params inside forward",
       [](Scene& s) {
         s.net->inside = [&s](PlayNet&) { const auto whole = s.model.full_params(); };
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
       in_forward([](PlayNet&) { throw std::runtime_error("the user's own words"); }),
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
  const State wanted = train_plain(*std::make_shared<PlayNet>(), ranks, 4, Optim::sgd);
  std::vector<std::shared_ptr<PlayNet>> nets;
  for (int r = 0; r < ranks; ++r) nets.push_back(std::make_shared<PlayNet>());
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

}  // namespace
}  // namespace fsdp::testing
