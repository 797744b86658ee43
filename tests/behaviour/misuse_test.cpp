// Promise: reading or writing sharded parameters where that would go wrong silently is answered in words, and
// the model can be used afterwards.
#include <sstream>

#include "behaviour/misuse_cases.h"

namespace fsdp::testing {
namespace {

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

TEST(Misuse, OfAParametersValuesIsAnsweredAndTrainingGoesOn) { expect_answers(reads()); }
TEST(Misuse, ByWritingInsideForwardIsAnsweredAndTrainingGoesOn) { expect_answers(writes()); }

}  // namespace
}  // namespace fsdp::testing
