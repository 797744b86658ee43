#include "support/training.h"

#include <sstream>

#include "support/ranks.h"

namespace fsdp::testing {

using at::Tensor;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optim kind, std::vector<Tensor> params) {
  switch (kind) {
    case Optim::plain_sgd:
      return std::make_unique<torch::optim::SGD>(std::move(params), 0.05);
    case Optim::sgd:
      return std::make_unique<torch::optim::SGD>(std::move(params),
                                                 torch::optim::SGDOptions(0.05).momentum(0.9));
    case Optim::adamw:
      return std::make_unique<torch::optim::AdamW>(std::move(params), torch::optim::AdamWOptions(1e-3));
    case Optim::fused_adamw:
      return std::make_unique<AdamW>(std::move(params), AdamWOptions(1e-3));
    case Optim::decaying_adamw:
      return std::make_unique<torch::optim::AdamW>(std::move(params),
                                                   torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  }
  return nullptr;
}

MakeOptimizer optimizer_of(Optim kind) {
  return [kind](std::vector<Tensor> params) { return make_optimizer(kind, std::move(params)); };
}

State state_of(const torch::nn::Module& module) {
  State state;
  for (const auto& item : module.named_parameters()) state[item.key()] = item.value().detach().clone();
  return state;
}

State train_whole_batch(Learner& learner, int ranks, int steps, Optim kind) {
  PlainTrainer trainer(learner, /*ranks=*/1);
  const auto optimizer = make_optimizer(kind, trainer.parameters());
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<Tensor>> parts(2);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto batch = learner.batch(step * ranks + rank);
      for (size_t i = 0; i < 2; ++i) parts[i].push_back(batch[i]);
    }
    const int64_t dim = learner.batch_dim();
    trainer.backward([&](int) { return learner.forward({at::cat(parts[0], dim), at::cat(parts[1], dim)}); });
    trainer.step(*optimizer);
  }
  return trainer.state();
}

State train_accumulated(Learner& learner, int ranks, int steps, Optim kind) {
  PlainTrainer trainer(learner, /*ranks=*/1);
  const auto optimizer = make_optimizer(kind, trainer.parameters());
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank)
      trainer.collect([&](int) { return learner.forward(learner.batch(step * ranks + rank)) / ranks; });
    trainer.reduce();
    trainer.step(*optimizer);
  }
  return trainer.state();
}

std::string difference(const State& got, const State& wanted) {
  std::ostringstream out;
  if (got.size() != wanted.size()) out << got.size() << " parameters, wanted " << wanted.size() << "; ";
  for (const auto& [name, value] : wanted) {
    const auto found = got.find(name);
    if (found == got.end())
      out << name << " is missing; ";
    else if (!found->second.equal(value))
      out << name << " differs by " << (found->second - value).abs().max().item<double>() << "; ";
  }
  return out.str();
}

void require_same(const State& got, const State& wanted, const std::string& what) {
  const std::string different = difference(got, wanted);
  require(different.empty(), what + different);
}

double drift(const State& got, const State& wanted) {
  double worst = 0;
  for (const auto& [name, value] : wanted)
    if (value.numel() > 0)
      worst = std::max(worst, (got.at(name) - value).abs().max().item<double>() /
                                  std::max(value.abs().max().item<double>(), 1e-30));
  return worst;
}

}  // namespace fsdp::testing
