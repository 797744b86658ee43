// Promise: optimizers, clipping and changes of the module that would go wrong silently are answered in words,
// and the model can be used afterwards.
#include <ATen/autocast_mode.h>

#include <optional>
#include <sstream>

#include "behaviour/misuse_cases.h"

namespace fsdp::testing {
namespace {

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

TEST(Misuse, OfOptimizersIsAnsweredAndTrainingGoesOn) { expect_answers(optimizers()); }
TEST(Misuse, ByChangingTheModuleIsAnsweredAndTrainingGoesOn) { expect_answers(changes()); }

}  // namespace
}  // namespace fsdp::testing
