// The harness of tests that train: a program runs the same on a plain model and on its sharded twin, and what
// they give is compared.
#pragma once

#include <fsdp/fsdp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
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
  at::Tensor randn(at::IntArrayRef shape, int64_t salt = 0) const;
  at::Tensor randint(int64_t high, at::IntArrayRef shape, int64_t salt = 0) const;
};

// The plain twin, standing for one of the ranks. Gradients of each backward are kept apart, since a sharded
// model averages them over ranks before it adds them up.
template <class M>
class PlainTwin {
 public:
  PlainTwin(std::shared_ptr<M> module, PlainTrainer& trainer, int rank)
      : module_(std::move(module)), trainer_(trainer), rank_(rank) {}

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
    trainer_.take(rank_, backwards_++);
  }
  void drop_gradients() {
    module_->zero_grad();
    trainer_.drop(rank_);
    backwards_ = 0;
  }

  std::vector<at::Tensor> seen;

 private:
  std::shared_ptr<M> module_;
  PlainTrainer& trainer_;
  int rank_;
  size_t backwards_ = 0;
};

// The sharded twin on one rank: everything a user has in hand.
template <class M>
class ShardedTwin : public Sharded<M> {
 public:
  ShardedTwin(const World& world, Sharded<M> model,
              const MakeOptimizer& make = optimizer_of(Optim::decaying_adamw))
      : Sharded<M>(std::move(model)), world(world), optimizer(make(this->parameters())) {}

  void see(const at::Tensor& value) { seen.push_back(value.detach().clone()); }
  void backward(const at::Tensor& loss, bool keep_graph = false) { loss.backward({}, keep_graph); }
  void drop_gradients() { this->zero_grad(); }

  Moment now() const { return {step, world.rank(), world.size()}; }
  // A Learner's loss, of this rank's batch of this step.
  at::Tensor loss() { return (*this)(this->module().batch_on(now().index(), world.device())); }
  // One step of training, by the program; of a Learner, by its loss.
  template <class Program>
  void train(Program program) {
    program(*this, now());
    end_step();
  }
  void train() {
    loss().backward();
    end_step();
  }
  void end_step() {
    optimizer->step();
    optimizer->zero_grad();
    ++step;
  }

  const World& world;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  int step = 0;
  std::vector<at::Tensor> seen;
};

// How long a program trains, on how many ranks, and with which optimizer.
struct Course {
  int steps = 5;
  std::vector<int> ranks = {1, 2, 3};
  MakeOptimizer optimizer = optimizer_of(Optim::decaying_adamw);
  std::set<std::string> ignored = {};  // parameters that no optimizer has
};

struct Variant {
  std::string name;
  ShardOptions options;
};

// What the plain twin gives.
struct Outcome {
  State weights;
  std::vector<State> grads;                   // per step; a parameter that no rank used is not there
  std::vector<std::vector<at::Tensor>> seen;  // per step and rank
};

// Small timeouts, so that a hang is an error.
ShardOptions sharded_by(WrapPolicy policy);
// These, and on several ranks the same with shards that are gathered into slots.
std::vector<Variant> with_slots(std::vector<Variant> variants, int ranks);

// This rank's slices of whole gradients, bit for bit.
void require_gradients(const ShardedModel& model, const State& wanted);
void require_seen(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted);

template <class Make>
auto make_seeded(Make make) {
  const SeededHere seeded(7);
  return make();
}

// On a thread of its own, as ranks are: how many threads operators use is a thread's own setting, and shows
// in bits.
template <class Make, class Program>
Outcome run_plain(Make make, Program program, int ranks, const Course& course) {
  Outcome outcome;
  run_ranks(1, [&](World&) {
    auto module = make_seeded(make);
    PlainTrainer::Named trained;
    for (auto& item : module->named_parameters())
      if (!course.ignored.contains(item.key())) trained.emplace_back(item.key(), item.value());
    PlainTrainer trainer(trained, ranks);
    const auto optimizer = course.optimizer(trainer.parameters());
    for (int s = 0; s < course.steps; ++s) {
      for (int r = 0; r < ranks; ++r) {
        PlainTwin twin(module, trainer, r);
        program(twin, Moment{s, r, ranks});
        outcome.seen.push_back(std::move(twin.seen));
      }
      trainer.reduce();
      outcome.grads.push_back(trainer.gradients());
      trainer.step(*optimizer);
    }
    outcome.weights = state_of(*module);
  });
  return outcome;
}

// Every step's gradients, everything the program saw, and the weights at the end: the same bits.
template <class M, class Program>
void require_outcome(ShardedTwin<M>& twin, Program program, const Outcome& wanted) {
  for (const State& grads : wanted.grads) {
    const Moment now = twin.now();
    program(twin, now);
    try {
      require_seen(std::exchange(twin.seen, {}), wanted.seen[static_cast<size_t>(now.index())]);
      require_gradients(twin, grads);
    } catch (const std::exception& error) {
      throw std::runtime_error("step " + std::to_string(now.step) + ": " + error.what());
    }
    twin.end_step();
  }
  require_same(state_of(twin), wanted.weights);
}

template <class Make, class Program>
void expect_same(Make make, Program program, const std::vector<Variant>& variants,
                 const Course& course = {}) {
  for (const int ranks : course.ranks) {
    const Outcome wanted = run_plain(make, program, ranks, course);
    for (const Variant& variant : with_slots(variants, ranks)) {
      try {
        run_ranks(ranks, [&](World& world) {
          ShardedTwin twin(world, fully_shard(world, make_seeded(make), variant.options), course.optimizer);
          require_outcome(twin, program, wanted);
        });
      } catch (const c10::Error& error) {
        ADD_FAILURE() << variant.name << ", W=" << ranks << ": " << error.what_without_backtrace();
      } catch (const std::exception& error) {
        ADD_FAILURE() << variant.name << ", W=" << ranks << ": " << error.what();
      }
    }
  }
}

// `steps` of the plain model on all ranks' batches: rank r of step s has batch s * W + r. Another `compute`
// type: weights are kept, and gradients summed, in the model's own type. Several `microbatches`: each rank
// adds up their gradients before they are summed over ranks.
State train_plain(Learner& learner, int ranks, int steps, Optim kind, at::ScalarType compute = at::kFloat,
                  int microbatches = 1);
// The same sharded.
void train_sharded(const Sharded<Learner>& model, const World& world, int steps, Optim kind);

}  // namespace fsdp::testing
