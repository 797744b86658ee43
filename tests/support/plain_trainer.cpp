#include "support/plain_trainer.h"

#include <algorithm>

namespace fsdp::testing {

using at::Tensor;

namespace {

PlainTrainer::Named named_parameters_of(const torch::nn::Module& module) {
  PlainTrainer::Named named;
  for (const auto& item : module.named_parameters()) named.emplace_back(item.key(), item.value());
  return named;
}

}  // namespace

PlainTrainer::PlainTrainer(const torch::nn::Module& module, int ranks, const PlainOptions& options)
    : PlainTrainer(named_parameters_of(module), ranks, options) {}

PlainTrainer::PlainTrainer(const Named& params, int ranks, const PlainOptions& options)
    : ranks_(ranks), options_(options) {
  for (const auto& [name, param] : params) {
    const auto same = [&one = param](const Tensor& seen) { return seen.is_same(one); };
    const auto found = std::find_if(params_.begin(), params_.end(), same);
    if (found != params_.end()) {
      names_[static_cast<size_t>(found - params_.begin())].push_back(name);
      continue;
    }
    names_.push_back({name});
    params_.push_back(param);
    masters_.push_back(param.detach().clone().set_requires_grad(param.requires_grad()));
    if (options.compute) param.set_data(param.detach().to(options.compute(name, param.scalar_type())));
  }
}

void PlainTrainer::backward(const std::function<Tensor(int rank)>& loss) {
  collect(loss);
  reduce();
}

void PlainTrainer::collect(const std::function<Tensor(int rank)>& loss) {
  for (int rank = 0; rank < ranks_; ++rank) {
    loss(rank).backward();
    take(rank);
  }
}

void PlainTrainer::take(int rank, size_t backward) {
  const std::vector<Tensor> none(params_.size());
  while (taken_.size() <= backward) taken_.emplace_back(static_cast<size_t>(ranks_), none);
  for (size_t i = 0; i < params_.size(); ++i) {
    Tensor grad = std::exchange(params_[i].mutable_grad(), Tensor());
    if (!grad.defined()) continue;
    grad = (grad.is_sparse() ? grad.to_dense() : grad).detach().to(reduce_type(i));
    Tensor& sum = taken_[backward][static_cast<size_t>(rank)][i];
    sum = sum.defined() ? sum + grad : grad;
  }
}

void PlainTrainer::reduce(const std::function<bool(const std::string& name)>& which) {
  for (auto& ranks : taken_)
    for (size_t i = 0; i < params_.size(); ++i) {
      if (which && !which(names_[i].front())) continue;
      std::vector<Tensor> terms;
      for (auto& rank : ranks) terms.push_back(std::exchange(rank[i], Tensor()));
      const Tensor sum = sum_over_ranks(std::move(terms), i);
      if (!sum.defined()) continue;
      Tensor& grad = masters_[i].mutable_grad();
      grad = grad.defined() ? grad + sum : sum;
    }
}

void PlainTrainer::drop(int rank) {
  for (auto& ranks : taken_)
    for (Tensor& grad : ranks[static_cast<size_t>(rank)]) grad = Tensor();
}

void PlainTrainer::step(torch::optim::Optimizer& optimizer) {
  optimizer.step();
  load();
}

void PlainTrainer::load() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i].copy_(masters_[i]);
    masters_[i].mutable_grad() = Tensor();
  }
}

State PlainTrainer::state() const {
  State state;
  for (size_t i = 0; i < masters_.size(); ++i)
    for (const std::string& name : names_[i]) state[name] = masters_[i].detach().clone();
  return state;
}

State PlainTrainer::gradients() const {
  State state;
  for (size_t i = 0; i < masters_.size(); ++i)
    if (masters_[i].grad().defined())
      for (const std::string& name : names_[i])
        state[name] = torch::empty_like(masters_[i]).copy_(masters_[i].grad()).detach();
  return state;
}

// Alone there is nothing to send, and no cast.
at::ScalarType PlainTrainer::reduce_type(size_t param) const {
  const at::ScalarType master = masters_[param].scalar_type();
  return ranks_ > 1 && c10::isFloatingType(master) ? options_.reduce.value_or(master) : master;
}

// The tree adds in fp32 or wider; the sum is rounded once. Ranks that did not use a parameter add zeros.
Tensor PlainTrainer::sum_over_ranks(std::vector<Tensor> terms, size_t param) const {
  const auto used = std::find_if(terms.begin(), terms.end(), [](const Tensor& t) { return t.defined(); });
  if (used == terms.end()) return {};
  const at::ScalarType type = used->scalar_type();
  const at::ScalarType wide = c10::isReducedFloatingType(type) ? at::kFloat : type;
  const Tensor zeros = torch::zeros_like(*used);
  for (Tensor& term : terms) term = (term.defined() ? term : zeros).to(wide);
  const bool twice = wide == at::kDouble || wide == at::kComplexDouble;
  const double share = twice ? 1.0 / ranks_ : static_cast<double>(1.0F / static_cast<float>(ranks_));
  if (options_.divide_by != 0)
    return tree_sum(terms).to(type).div(options_.divide_by).to(masters_[param].scalar_type());
  const Tensor sum = tree_sum(terms).mul(options_.op == ReduceOp::average ? share : 1.0);
  return sum.to(type).to(masters_[param].scalar_type());
}

Tensor tree_sum(const std::vector<Tensor>& terms) {
  if (terms.size() == 1) return terms.front();
  size_t left = 1;
  while (left * 2 < terms.size()) left *= 2;
  const auto middle = terms.begin() + static_cast<std::ptrdiff_t>(left);
  return tree_sum({terms.begin(), middle}) + tree_sum({middle, terms.end()});
}

}  // namespace fsdp::testing
