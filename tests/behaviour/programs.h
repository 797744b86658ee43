// Programs that run the same on a plain and on a sharded model, and the comparison of what they give.
#pragma once

#include <fsdp/fsdp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {

// Where a program is: which step, on which rank.
struct Moment {
  int step = 0;
  int rank = 0;
  int ranks = 1;

  int64_t index() const { return static_cast<int64_t>(step) * ranks + rank; }
  // This rank's data of this step; `salt` tells several tensors apart.
  at::Tensor randn(at::IntArrayRef shape, int64_t salt = 0) const {
    auto gen =
        at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + index() + 100000 * salt));
    return torch::randn(shape, gen);
  }
  at::Tensor randint(int64_t high, at::IntArrayRef shape, int64_t salt = 0) const {
    auto gen =
        at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(5000 + index() + 100000 * salt));
    return torch::randint(high, shape, gen);
  }
};

// What a program has of the plain model. Gradients of each backward are kept apart, since a sharded model
// averages them over ranks before it adds them up.
template <class M>
class PlainModel {
 public:
  explicit PlainModel(std::shared_ptr<M> module) : module_(std::move(module)) {}

  template <class... Args>
  auto operator()(Args&&... args) {
    return module_->forward(std::forward<Args>(args)...);
  }
  template <class Fn>
  auto run(Fn&& fn) {
    return fn(*module_);
  }
  M& module() { return *module_; }
  void see(const at::Tensor& value) { seen.push_back(value.detach().clone()); }
  void backward(const at::Tensor& loss, bool keep_graph = false) {
    loss.backward({}, keep_graph);
    taken.emplace_back();
    for (auto& param : module_->parameters()) {
      at::Tensor grad = std::exchange(param.mutable_grad(), at::Tensor());
      taken.back().push_back(grad.defined() && grad.is_sparse() ? grad.to_dense() : grad);
    }
  }
  void drop_gradients() {
    for (auto& param : module_->parameters()) param.mutable_grad() = at::Tensor();
    taken.clear();
  }

  std::vector<at::Tensor> seen;
  std::vector<std::vector<at::Tensor>> taken;  // [backward][parameter]

 private:
  std::shared_ptr<M> module_;
};

// The same of a sharded model.
template <class M>
class ShardedProgram : public Sharded<M> {
 public:
  explicit ShardedProgram(Sharded<M> model) : Sharded<M>(std::move(model)) {}

  void see(const at::Tensor& value) { seen.push_back(value.detach().clone()); }
  void backward(const at::Tensor& loss, bool keep_graph = false) { loss.backward({}, keep_graph); }
  void drop_gradients() { this->zero_grad(); }

  std::vector<at::Tensor> seen;
};

struct Outcome {
  State weights;
  std::vector<State> grads;                   // per step; a parameter that no rank used is not there
  std::vector<std::vector<at::Tensor>> seen;  // per step and rank
};

struct Program {
  int steps = 5;
  std::vector<int> ranks = {1, 2, 3};
  std::set<std::string> ignored = {};  // parameters that no optimizer has
};

struct Variant {
  std::string name;
  ShardOptions options;
};

std::unique_ptr<torch::optim::Optimizer> optimizer_of(std::vector<at::Tensor> params);
// Sum over backwards of the mean over ranks; undefined: no rank used it.
at::Tensor joined(const std::vector<std::vector<std::vector<at::Tensor>>>& taken, size_t param);
void check_gradients(const ShardedModel& model, const State& wanted);
void check_seen(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted);
// One unit per block, one per large module, one in all; small timeouts, so that a hang is an error.
std::vector<Variant> usual_variants();
ShardOptions sharded_by(WrapPolicy policy);
// These, and on several ranks the same with shards that are gathered into slots.
std::vector<Variant> with_slots(std::vector<Variant> variants, int ranks);

State weights_of(const torch::nn::Module& module);
template <class M>
State weights_of(Sharded<M>& model) {
  const auto whole = model.full_params();
  return weights_of(model.module());
}

template <class Make>
auto make_seeded(Make make) {
  const SeededHere seeded(7);
  return make();
}

template <class Make, class Step>
void run_plain_here(Make make, Step step, int ranks, const Program& program, Outcome& outcome) {
  at::set_num_threads(1);
  auto module = make_seeded(make);
  std::vector<at::Tensor> trained;
  for (auto& item : module->named_parameters())
    if (item.value().requires_grad() && !program.ignored.contains(item.key()))
      trained.push_back(item.value());
  const auto optimizer = optimizer_of(trained);
  for (int s = 0; s < program.steps; ++s) {
    std::vector<std::vector<std::vector<at::Tensor>>> taken;  // [rank][backward][parameter]
    for (int r = 0; r < ranks; ++r) {
      PlainModel model(module);
      step(model, Moment{s, r, ranks});
      taken.push_back(std::move(model.taken));
      outcome.seen.push_back(std::move(model.seen));
    }
    State grads;
    size_t i = 0;
    for (auto& item : module->named_parameters()) {
      const at::Tensor grad = joined(taken, i++);
      item.value().mutable_grad() = grad;
      if (grad.defined()) grads[item.key()] = torch::empty_like(item.value()).copy_(grad).detach();
    }
    outcome.grads.push_back(std::move(grads));
    optimizer->step();
    for (auto& param : module->parameters()) param.mutable_grad() = at::Tensor();
  }
  outcome.weights = weights_of(*module);
}

// On a thread of its own, as ranks are: how many threads operators use is a thread's own setting, and shows
// in bits.
template <class Make, class Step>
Outcome run_plain(Make make, Step step, int ranks, const Program& program) {
  Outcome outcome;
  run_ranks(1, [&](World&) { run_plain_here(make, step, ranks, program, outcome); });
  return outcome;
}

// Every step's gradients, everything the program saw, and the weights at the end: the same bits.
template <class Model, class Step>
void check_sharded(Model& model, Step step, const World& world, const Outcome& wanted,
                   const Program& program) {
  at::set_num_threads(1);
  const auto optimizer = optimizer_of(model.parameters());
  for (int s = 0; s < program.steps; ++s) {
    const Moment now{s, world.rank(), world.size()};
    step(model, now);
    const std::string when = "step " + std::to_string(s) + ": ";
    try {
      check_seen(model.seen, wanted.seen[static_cast<size_t>(now.index())]);
      check_gradients(model, wanted.grads[static_cast<size_t>(s)]);
    } catch (const std::exception& error) {
      throw std::runtime_error(when + error.what());
    }
    model.seen.clear();
    optimizer->step();
    optimizer->zero_grad();
  }
  const std::string different = difference(weights_of(model), wanted.weights);
  require(different.empty(), different);
}

template <class Make, class Step>
void expect_same(Make make, Step step, const std::vector<Variant>& variants = usual_variants(),
                 const Program& program = {}) {
  for (const int ranks : program.ranks) {
    const Outcome wanted = run_plain(make, step, ranks, program);
    for (const Variant& variant : with_slots(variants, ranks)) {
      std::vector<decltype(make())> modules;
      for (int r = 0; r < ranks; ++r) modules.push_back(make_seeded(make));
      try {
        run_ranks(ranks, [&](World& world) {
          ShardedProgram model(
              fully_shard(world, modules[static_cast<size_t>(world.rank())], variant.options));
          check_sharded(model, step, world, wanted, program);
        });
      } catch (const c10::Error& error) {
        ADD_FAILURE() << variant.name << ", W=" << ranks << ": " << error.what_without_backtrace();
      } catch (const std::exception& error) {
        ADD_FAILURE() << variant.name << ", W=" << ranks << ": " << error.what();
      }
    }
  }
}

// --- A small model of three blocks.

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width = 8) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    in = register_module("in", torch::nn::Linear(6, 8));
    for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(8)));
    out = register_module("out", torch::nn::Linear(8, 4));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = in(x);
    for (auto& block : blocks) h = block(h);
    return out(h);
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  std::vector<Block> blocks;
};
TORCH_MODULE(Net);

inline std::shared_ptr<NetImpl> make_net() { return std::make_shared<NetImpl>(); }
inline at::Tensor loss_of(const at::Tensor& y) { return y.square().mean(); }

}  // namespace fsdp::testing
