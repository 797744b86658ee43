#include "fuzz/sharded.h"

#include <cmath>
#include <optional>
#include <sstream>

#include "fuzz/options.h"
#include "fuzz/saves.h"

namespace fsdp::fuzz {

using at::Tensor;

namespace {

// Sums of few fp64 numbers in another order.
constexpr double kTolerance = 1e-9;

class Run {
 public:
  Run(const Program& program, const World& world, const CommOptions& comm)
      : program_(program),
        world_(world),
        other_device_(!world.device().is_cpu()),
        module_(make_model(program.net)),
        inner_(inner(comm)),
        model_(fully_shard(world, module_, options_of(program, comm))),
        optimizer_(make_optimizer(program, model_.parameters())) {
    std::vector<const c10::TensorImpl*> seen;
    for (auto& item : module_->named_parameters()) {
      if (std::find(seen.begin(), seen.end(), item.value().unsafeGetTensorImpl()) != seen.end()) continue;
      seen.push_back(item.value().unsafeGetTensorImpl());
      names_.push_back(item.key());
    }
  }

  void run(size_t at, const Record& wanted) {
    at_ = at;
    seen_.clear();
    act(program_.actions[at]);
    compare(wanted);
  }

 private:
  std::optional<Sharded<BlockImpl>> inner(const CommOptions& comm) {
    if (!program_.inner) return std::nullopt;
    return fully_shard(world_, module_->blocks[1], options_of(program_, comm));
  }
  Tensor input_of(int k) const { return input(program_, at_, world_.rank(), k).to(world_.device()); }
  Way way(int k) const {
    const Action& action = program_.actions[at_];
    Way way = way_of(program_, action, world_.rank(), k, other_device_);
    // On all ranks alike. Gradients of gradients need the graph.
    if (program_.again && action.what != Do::input_gradients)
      way.again = static_cast<unsigned>(action.a * 5 + action.b + k);
    return way;
  }
  Tensor forward(int k) { return model_(input_of(k), way(k)); }
  Tensor penalty() const { return penalty_over(model_.parameters()); }
  void see(const Tensor& value) { seen_.push_back(value.detach().cpu().clone()); }
  void evaluate(int k) {
    const at::NoGradGuard no_grad;
    see(forward(k));
  }
  void see_all(const std::string& under) {
    const auto params = module_->named_parameters();
    for (const std::string& name : names_)
      if (name.starts_with(under)) see(params[name]);
  }
  void see_gradients() {
    for (const Tensor& param : parameters_of(*module_))
      if (param.grad().defined()) see(param.grad());
  }
  void change_slices(double factor) {
    for (Tensor& slice : model_.parameters()) change(slice, factor);
  }
  void act(const Action& action);
  void act_on_gradients(const Action& action);
  void act_on_values(const Action& action);
  void write_between();
  void loop_inside();
  void told();
  void save_and_load();
  void take_out_and_in(StateDictType type);
  void compare(const Record& wanted) const;
  void same(const std::string& what, const Tensor& got, const Tensor& wanted) const;

  const Program& program_;
  const World& world_;
  bool other_device_;
  std::shared_ptr<ModelImpl> module_;
  std::optional<Sharded<BlockImpl>> inner_;
  Sharded<ModelImpl> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<std::string> names_;
  std::vector<Tensor> seen_;
  void spoil();
  Saves saves_;
  std::vector<Tensor> kept_, copies_;  // gradients the program holds, and what they were then
  size_t at_ = 0;
};

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

void Run::save_and_load() {
  const std::string folder = saves_.folder(world_);
  RunState run{
      .model = model_, .optimizer = optimizer_.get(), .step = static_cast<int64_t>(at_), .rng = false};
  save(folder, run, {.keep_last = 1});
  spoil();
  const auto fresh = make_optimizer(program_, model_.parameters());
  optimizer_->state().clear();
  for (size_t i = 0; i < optimizer_->param_groups().size(); ++i)
    optimizer_->param_groups()[i].options().set_lr(fresh->param_groups()[i].options().get_lr() * 7);
  load(folder, run);
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
      const auto kept = model_.keep_gathered();
      loss_of(forward(0)).backward();
      return loss_of(forward(1)).backward();
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
      const Tensor loss = loss_of(forward(0));
      evaluate(1);
      return loss.backward();
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
      TORCH_CHECK(!model_.describe().empty());
      return;
    case Do::save_and_load:
      return save_and_load();
    case Do::save_beside:
      return saves_.save(model_, *optimizer_, world_, at_);
    case Do::take_out_and_in:
      return take_out_and_in(static_cast<StateDictType>(action.a % 3));
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

void Run::act_on_gradients(const Action& action) {
  auto slices = model_.parameters();
  switch (action.what) {
    case Do::step:
      optimizer_->step();
      return;
    case Do::new_optimizer:
      optimizer_ = make_optimizer(program_, slices);
      return;
    case Do::zero_model:
      return model_.zero_grad();
    case Do::zero_optimizer:
      return optimizer_->zero_grad();
    case Do::zero_some:
      for (size_t i = 1; i < slices.size(); i += 2) slices[i].mutable_grad() = Tensor();
      return;
    case Do::scale_gradients:
      for (Tensor& slice : slices)
        if (slice.grad().defined()) slice.mutable_grad().mul_(0.5);
      return;
    case Do::clip_norm:
      model_.clip_grad_norm_(0.1 * (1 + action.a));
      return;
    case Do::clip_infinity:
      model_.clip_grad_norm_(0.01 * (1 + action.a), std::numeric_limits<double>::infinity());
      return;
    case Do::clip_value:
      for (Tensor& slice : slices)
        if (slice.grad().defined() && !slice.is_complex()) slice.mutable_grad().clamp_(-0.02, 0.02);
      return;
    case Do::penalty:
      return penalty().backward();
    case Do::penalty_first: {
      const Tensor first = penalty();
      return (loss_of(forward(0)) + first).backward();
    }
    case Do::penalty_last: {
      const Tensor first = loss_of(forward(0));
      return (first + penalty()).backward();
    }
    case Do::penalty_kept_back: {
      const auto kept = model_.no_sync();
      const Tensor first = loss_of(forward(0));
      return (first + penalty()).backward();
    }
    case Do::keep_gradients:
      kept_.clear();
      copies_.clear();
      for (const Tensor& slice : slices) {
        kept_.push_back(slice.grad());
        copies_.push_back(slice.grad().defined() ? slice.grad().clone() : Tensor());
      }
      return model_.zero_grad();
    case Do::add_kept_gradients:
      for (size_t i = 0; i < kept_.size(); ++i) {
        Tensor& grad = slices[i].mutable_grad();
        if (kept_[i].defined() && slices[i].requires_grad())
          grad = grad.defined() ? kept_[i] + grad : kept_[i].clone();
      }
      kept_.clear();
      copies_.clear();
      return;
    default:
      return act_on_values(action);
  }
}

void Run::act_on_values(const Action& action) {
  switch (action.what) {
    case Do::freeze:
    case Do::freeze_and_look: {
      model_.zero_grad();
      const size_t i = frozen_by(action, names_.size());
      module_->named_parameters()[names_[i]].set_requires_grad(false);
      if (action.what == Do::freeze_and_look) {
        const auto whole = model_.full_params();
        see_all("");
      }
      return evaluate(0);
    }
    case Do::thaw:
      for (auto& param : module_->parameters())
        if (param.is_floating_point() || param.is_complex()) param.set_requires_grad(true);
      return evaluate(0);
    case Do::look: {
      const auto whole = model_.full_params();
      return see_all("");
    }
    case Do::look_at_block: {
      const std::string block = "block" + std::to_string(action.a % program_.net.blocks);
      const auto whole = model_.full_params({.module = block});
      return see_all(block + ".");
    }
    case Do::look_on_host: {
      const auto whole = model_.full_params({.rank0_only = true, .offload = true});
      if (world_.rank() == 0) see_all("");
      return;
    }
    case Do::write_whole: {
      const auto whole = model_.full_params(true);
      for (Tensor& param : parameters_of(*module_)) change(param, 1.01);
      return;
    }
    case Do::look_at_gradients: {
      const auto whole = model_.full_params({.gradients = true});
      return see_gradients();
    }
    case Do::write_gradients: {
      const auto whole = model_.full_params({.write_back = true, .gradients = true});
      for (const Tensor& param : parameters_of(*module_))
        if (param.grad().defined()) param.mutable_grad().mul_(0.5);
      return;
    }
    case Do::write_data: {
      const auto whole = model_.full_params(true);
      for (Tensor& param : parameters_of(*module_)) {
        Tensor other = param.detach().clone();
        change(other, 0.99);
        param.set_data(other);
      }
      return;
    }
    case Do::write_slices:
      return change_slices(0.98);
    default:
      TORCH_CHECK(false, "an action that the sharded program does not know: ", name_of(action.what));
  }
}

void Run::same(const std::string& what, const Tensor& got, const Tensor& wanted) const {
  const Tensor a = got.detach().cpu().to(wanted.scalar_type()), b = wanted;
  const double size = b.numel() == 0 ? 0 : b.abs().max().to(at::kDouble).item<double>();
  const double error = b.numel() == 0 ? 0 : (a - b).abs().max().to(at::kDouble).item<double>();
  // Off the CPU kernels get copies, which may lie otherwise: sums inside them may have another order.
  const double tolerance = other_device_ && program_.compute != Compute::as_kept ? 1e-5 : kTolerance;
  if (a.sizes() == b.sizes() && (error <= tolerance * (1 + size) || !std::isfinite(size))) return;
  std::ostringstream out;
  out << what << " differs by " << error << " of " << size << " on rank " << world_.rank();
  throw std::runtime_error(out.str());
}

void Run::compare(const Record& wanted) const {
  const auto& seen = wanted.seen[static_cast<size_t>(world_.rank())];
  if (seen_.size() != seen.size()) throw std::runtime_error("it saw another number of values");
  for (size_t i = 0; i < seen.size(); ++i) same("value " + std::to_string(i), seen_[i], seen[i]);
  const auto slices = model_.named_parameters();
  for (size_t i = 0; i < names_.size(); ++i) {
    const Tensor& slice = slices[names_[i]];
    for (const auto& shard : model_.parameter_info(names_[i]).shards) {
      if (!shard.is_local || shard.size == 0) continue;
      const auto part = [&](const Tensor& whole) {
        return whole.flatten().narrow(0, shard.start, shard.size);
      };
      same(names_[i], slice, part(wanted.weights[i]));
      if (slice.grad().defined() != wanted.grads[i].defined())
        throw std::runtime_error(names_[i] +
                                 (slice.grad().defined() ? " has a gradient" : " has no gradient") +
                                 " on rank " + std::to_string(world_.rank()));
      if (slice.grad().defined()) same("the gradient of " + names_[i], slice.grad(), part(wanted.grads[i]));
    }
    if (!kept_.empty() && kept_[i].defined())
      same("a held gradient of " + names_[i], kept_[i], copies_[i].cpu());
  }
}

}  // namespace

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
}

}  // namespace fsdp::fuzz
