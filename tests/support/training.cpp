#include "support/training.h"

#include <sstream>

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
  }
  return nullptr;
}

namespace {

std::vector<Tensor> trainable(Learner& learner) {
  std::vector<Tensor> params;
  for (auto& item : learner.named_parameters())
    if (item.value().requires_grad() && std::none_of(params.begin(), params.end(), [&](const Tensor& seen) {
          return seen.is_same(item.value());
        }))
      params.push_back(item.value());
  return params;
}

}  // namespace

State state_of(Learner& learner) {
  State state;
  for (auto& item : learner.named_parameters()) state[item.key()] = item.value().detach().clone();
  return state;
}

State state_of(Sharded<Learner>& model) {
  const auto whole = model.full_params();
  return state_of(model.module());
}

Tensor tree_sum(const std::vector<Tensor>& terms) {
  if (terms.size() == 1) return terms.front();
  size_t left = 1;
  while (left * 2 < terms.size()) left *= 2;
  const auto middle = terms.begin() + static_cast<std::ptrdiff_t>(left);
  return tree_sum({terms.begin(), middle}) + tree_sum({middle, terms.end()});
}

State train_plain(Learner& learner, int ranks, int steps, Optim kind, at::ScalarType compute,
                  int microbatches) {
  const auto params = trainable(learner);
  std::vector<Tensor> masters;
  for (const Tensor& param : params) masters.push_back(param.detach().clone().requires_grad_());
  const auto optimizer = make_optimizer(kind, masters);
  learner.to(compute);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<Tensor>> grads(params.size());  // by parameter, of every rank
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<Tensor> sums(params.size());
      for (int m = 0; m < microbatches; ++m) {
        const int64_t index = (static_cast<int64_t>(step) * microbatches + m) * ranks + rank;
        learner.zero_grad();
        learner.forward(learner.batch_on(index, params.front().device(), compute)).backward();
        for (size_t i = 0; i < params.size(); ++i) {
          if (!params[i].grad().defined()) continue;
          const Tensor grad = params[i].grad().to(at::kFloat);
          sums[i] = sums[i].defined() ? sums[i] + grad : grad;
        }
      }
      for (size_t i = 0; i < params.size(); ++i)
        if (sums[i].defined()) grads[i].push_back(sums[i]);
    }
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < params.size(); ++i)
      if (!grads[i].empty())
        masters[i].mutable_grad() = tree_sum(grads[i]).mul(1.0F / static_cast<float>(ranks));
    optimizer->step();
    for (size_t i = 0; i < params.size(); ++i) params[i].detach().copy_(masters[i]);
  }
  learner.to(at::kFloat);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < params.size(); ++i) params[i].detach().copy_(masters[i]);
  return state_of(learner);
}

State train_whole_batch(Learner& learner, int ranks, int steps, Optim kind) {
  const auto params = trainable(learner);
  const auto optimizer = make_optimizer(kind, params);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<Tensor>> parts(2);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto batch = learner.batch(step * ranks + rank);
      for (size_t i = 0; i < 2; ++i) parts[i].push_back(batch[i]);
    }
    optimizer->zero_grad();
    learner.forward({at::cat(parts[0], learner.batch_dim()), at::cat(parts[1], learner.batch_dim())})
        .backward();
    optimizer->step();
  }
  return state_of(learner);
}

State train_accumulated(Learner& learner, int ranks, int steps, Optim kind) {
  const auto optimizer = make_optimizer(kind, trainable(learner));
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    for (int rank = 0; rank < ranks; ++rank)
      (learner.forward(learner.batch(step * ranks + rank)) / ranks).backward();
    optimizer->step();
  }
  return state_of(learner);
}

void train_sharded(Sharded<Learner>& model, const World& world, int steps, Optim kind) {
  const auto optimizer = make_optimizer(kind, model.parameters());
  for (int step = 0; step < steps; ++step) {
    model(model.module().batch_on(step * world.size() + world.rank(), world.device())).backward();
    optimizer->step();
    optimizer->zero_grad();
  }
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

double drift(const State& got, const State& wanted) {
  double worst = 0;
  for (const auto& [name, value] : wanted)
    if (value.numel() > 0)
      worst = std::max(worst, (got.at(name) - value).abs().max().item<double>() /
                                  std::max(value.abs().max().item<double>(), 1e-30));
  return worst;
}

}  // namespace fsdp::testing
