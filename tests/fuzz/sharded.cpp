#include "fuzz/sharded.h"

#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#include "fuzz/sharded_run.h"

namespace fsdp::fuzz {

using at::Tensor;

void Run::write_between() {
  const at::NoGradGuard no_grad;
  model_.run([&](ModelImpl& module) {
    see(module.forward(input_of(0).to(compute_type(program_)), way(0)));
    change_slices(0.97);
    see(module.forward(input_of(1).to(compute_type(program_)), way(1)));
  });
}

void Run::loop_inside() {
  model_.run([&](ModelImpl& module) {
    for (int k = 0; k < 2; ++k) {
      loss_of(module.forward(input_of(k).to(compute_type(program_)), way(k))).backward();
      optimizer_->step();
      model_.zero_grad();
    }
  });
}

void Run::told() {
  model_.zero_grad();
  model_.on_gradient([](const std::string&, Tensor& slice) {
    slice.detach().sub_(slice.grad(), 0.01);
    slice.mutable_grad() = Tensor();
  });
  loss_of(forward(0)).backward();
  model_.on_gradient({});
}

void Run::averaged() {
  const auto net = make_model(program_.net);
  std::optional<Sharded<BlockImpl>> inner;  // slices must be those of the model
  if (program_.inner) inner = fully_shard(world_, net->blocks[1], options_of(program_, comm_));
  auto average = fully_shard(world_, net, options_of(program_, comm_));
  update_average(average, model_, 0.0);
  change_slices(0.98);
  update_average(average, model_, 0.75);
  const auto whole = average.full_params();
  const auto params = net->named_parameters();
  for (const std::string& name : names_) see(params[name]);
}

void Run::weighted(const Action& action) {
  TokenMean mean(world_, options_of(program_, comm_));
  const std::vector<int64_t> counts = token_counts(action, world_.rank());
  int64_t total = 0;
  for (int rank = 0; rank < world_.size(); ++rank)
    for (const int64_t count : token_counts(action, rank)) total += count;
  // The toy device has no sums outside of the model.
  const auto weights = other_device_ ? mean.weights(counts, total) : mean.weights(counts);
  {
    const auto kept = model_.no_sync();
    (loss_of(forward(0)) * weights[0]).backward();
  }
  (loss_of(forward(1)) * weights[1]).backward();
}

void Run::take_out_and_in(StateDictType type) {
  const StateDict values = state_dict(model_, {.type = type});
  const StateDict moments = optimizer_state_dict(model_, *optimizer_);
  spoil();
  optimizer_->state().clear();
  load_state_dict(model_, values);
  load_optimizer_state_dict(model_, *optimizer_, moments);
}

void Run::spoil() {
  const at::NoGradGuard no_grad;
  for (Tensor& slice : model_.parameters()) slice.detach().zero_();
}

void Run::act(const Action& action) {
  switch (action.what) {
    case Do::backward:
    case Do::drop_block:
    case Do::gates:
      return loss_of(forward(0)).backward();
    case Do::kept_back: {
      const auto kept = model_.no_sync();
      return loss_of(forward(0)).backward();
    }
    case Do::kept_back_block: {
      const std::string block = "block" + std::to_string(action.a % program_.net.blocks);
      const auto kept = model_.no_sync({.module = holds_blocks(program_) ? block : ""});
      return loss_of(forward(0)).backward();
    }
    case Do::kept_in_row: {
      {
        const auto kept = model_.no_sync({.rows_only = true});
        loss_of(forward(0)).backward();
      }
      return loss_of(forward(1)).backward();
    }
    case Do::kept_gathered: {
      const std::string block = "block" + std::to_string(action.a % program_.net.blocks);
      const auto kept = model_.keep_gathered({.module = action.b % 3 == 0 ? block : ""});
      loss_of(forward(0)).backward();
      return loss_of(forward(1)).backward();
    }
    case Do::synchronized: {
      std::optional<NoSync> scope;
      {
        NoSync inner = model_.no_sync();
        scope = std::move(inner);
      }
      const Tensor loss = loss_of(forward(0));
      if (!other_device_) TORCH_CHECK(std::isfinite(world_.mean(loss).item<double>()));
      loss.backward();
      scope.reset();
      return model_.synchronize_gradients();
    }
    case Do::told:
      return told();
    case Do::joint_backward:
    case Do::gate_in_one_of_two: {
      const Tensor first = loss_of(forward(0));
      return (first + loss_of(forward(1))).backward();
    }
    case Do::two_backwards: {
      const Tensor first = loss_of(forward(0));
      const Tensor second = loss_of(forward(1));
      second.backward();
      return first.backward();
    }
    case Do::forward_only:
      return see(forward(0));
    case Do::evaluate:
      return evaluate(0);
    case Do::evaluate_inference: {
      const c10::InferenceMode inference;
      return see(forward(0));
    }
    case Do::evaluate_between: {
      const Tensor first = loss_of(forward(0));
      for (int k = 1; k <= 1 + action.a % 2; ++k) evaluate(k);
      return (action.b % 3 == 0 ? first + loss_of(forward(3)) : first).backward();
    }
    case Do::train_off_and_on:
      model_.eval();
      evaluate(0);
      return model_.train();
    case Do::retain_graph: {
      const Tensor loss = loss_of(forward(0));
      loss.backward({}, /*retain_graph=*/true);
      return loss.backward();
    }
    case Do::input_gradients: {
      const Tensor x = input_of(0).requires_grad_();
      const Tensor y = model_(x, Way{});
      const Tensor g = torch::autograd::grad({y.sum()}, {x}, {}, {}, /*create_graph=*/true)[0];
      return (g.square().mean() + loss_of(y)).backward();
    }
    case Do::inputs_alone:
      return see_input_gradients(0);
    case Do::attack_and_train:
      see_input_gradients(0);
      see_input_gradients(1);
      // The input needs a gradient, so that the backward reads what the two before read.
      return loss_of(model_(input_of(2).requires_grad_(), way(2))).backward();
    case Do::nested_scopes: {
      const auto gathered = model_.keep_gathered();
      {
        const auto kept = model_.no_sync();
        loss_of(forward(0)).backward();
      }
      evaluate(1);
      see_input_gradients(2);
      return loss_of(forward(3)).backward();
    }
    case Do::given_alone: {
      const Tensor x = input_of(0).requires_grad_();
      const Tensor& given = action.a % 2 == 0 ? x : module_->in->weight;
      torch::autograd::backward({loss_of(model_(x, Way{}))}, {}, false, false, {given});
      return action.a % 2 == 0 ? see(x.grad()) : void();
    }
    case Do::write_between:
      return write_between();
    case Do::loop_inside:
      return loop_inside();
    case Do::use_pointer: {
      const at::NoGradGuard no_grad;
      model_.run([&](ModelImpl& module) {
        const auto used = use(module.in->weight);
        const Tensor& weight = module.in->weight;
        see(weight.detach().to(at::kDouble).flatten()[0]);
      });
      return evaluate(0);
    }
    case Do::fail_forward:
    case Do::fail_backward:
      try {
        loss_of(forward(0)).backward();
      } catch (const std::exception& error) {
        if (std::string(error.what()).find("of the user's that throws") == std::string::npos) throw;
      }
      if (action.what == Do::fail_backward) model_.zero_grad();
      return;
    case Do::insight:
      model_.memory_stats();
      model_.unit_counts();
      model_.record_memory(action.a % 2 == 0);
      model_.memory_timeline();
      model_.on_transition([this](const UnitTransition&) { ++transitions_; });
      TORCH_CHECK(!model_.describe().empty());
      return;
    case Do::save_and_load:
      return save_and_load();
    case Do::save_beside:
      return saves_.save(model_, *optimizer_, world_, at_);
    case Do::save_crowd:
      return saves_.save_crowd(model_, *optimizer_, world_, at_);
    case Do::take_out_and_in:
      return take_out_and_in(static_cast<StateDictType>(action.a % 3));
    case Do::averaged:
      return averaged();
    case Do::weighted:
      return weighted(action);
    case Do::by_hand: {
      const std::string block = "block" + std::to_string(action.a % program_.net.blocks);
      model_.unshard(action.b % 3 == 0 ? "" : block);
      if (action.b % 2 == 0) model_.reshard(block);
      return action.a % 4 == 0 ? evaluate(0) : loss_of(forward(0)).backward();
    }
    default:
      return act_on_gradients(action);
  }
}

void run_sharded(const Program& program, const World& world, const std::vector<Record>& wanted,
                 const CommOptions& comm) {
  at::set_num_threads(1);
  Run run(program, world, comm);
  for (size_t i = 0; i < program.actions.size(); ++i) {
    try {
      run.run(i, wanted[i]);
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const c10::Error*>(&error);
      throw std::runtime_error("action " + std::to_string(i) + ", " + name_of(program.actions[i].what) +
                               ": " + (known != nullptr ? known->what_without_backtrace() : error.what()));
    }
  }
  run.drop_gradients();
}

}  // namespace fsdp::fuzz
