// A random program on a sharded model.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/options.h"
#include "fuzz/saves.h"
#include "fuzz/sharded.h"

namespace fsdp::fuzz {

class Run {
 public:
  Run(const Program& program, const World& world, const CommOptions& comm)
      : program_(program),
        world_(world),
        comm_(comm),
        other_device_(!world.device().is_cpu()),
        module_(make_model(program.net)),
        inner_(inner(comm)),
        model_(fully_shard(world, module_, options_of(program, comm))) {
    renew_optimizer();
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
  // A gradient made with create_graph holds a graph that holds its parameter: nobody else would free them.
  void drop_gradients() { model_.zero_grad(); }

 private:
  std::optional<Sharded<BlockImpl>> inner(const CommOptions& comm) {
    if (!program_.inner) return std::nullopt;
    return fully_shard(world_, module_->blocks[1], options_of(program_, comm));
  }
  void renew_optimizer() {
    optimizer_.reset();  // one at a time steps in backward
    optimizer_ = make_optimizer(program_, model_.parameters());
    if (program_.in_backward) dynamic_cast<AdamW&>(*optimizer_).step_in_backward(model_);
  }
  at::Tensor input_of(int k) const { return input(program_, at_, world_.rank(), k).to(world_.device()); }
  Way way(int k) const {
    const Action& action = program_.actions[at_];
    Way way = way_of(program_, action, world_.rank(), k, other_device_);
    // On all ranks alike. Gradients of gradients need the graph.
    if (program_.again && action.what != Do::input_gradients && !with_graph(action))
      way.again = static_cast<unsigned>(action.a * 5 + action.b + k);
    return way;
  }
  at::Tensor forward(int k) { return model_(input_of(k), way(k)); }
  at::Tensor penalty() const { return penalty_over(model_.parameters()); }
  void see(const at::Tensor& value) { seen_.push_back(value.detach().cpu().clone()); }
  void evaluate(int k) {
    const at::NoGradGuard no_grad;
    see(forward(k));
  }
  void see_input_gradients(int k) {
    const at::Tensor x = input_of(k).requires_grad_();
    see(torch::autograd::grad({model_(x, way(k)).sum()}, {x})[0]);
  }
  void see_all(const std::string& under) {
    const auto params = module_->named_parameters();
    for (const std::string& name : names_)
      if (name.starts_with(under)) see(params[name]);
  }
  void see_gradients() {
    for (const at::Tensor& param : parameters_of(*module_))
      if (param.grad().defined()) see(param.grad());
  }
  void change_slices(double factor) {
    for (at::Tensor& slice : model_.parameters()) change(slice, factor);
  }
  void act(const Action& action);
  void act_on_gradients(const Action& action);
  void act_on_values(const Action& action);
  void step_clipped(double max_norm);
  void write_between();
  void loop_inside();
  void told();
  void averaged();
  void weighted(const Action& action);
  void save_and_load();
  std::unique_ptr<torch::optim::Optimizer> in_groups(bool odd_first, double lr_of_odd) const;
  void load_groups_in_another_order();
  void load_with_another_model();
  void load_with_ignored_parameters();
  void spoil();
  void take_out_and_in(StateDictType type);
  void compare(const Record& wanted) const;
  void same(const std::string& what, const at::Tensor& got, const at::Tensor& wanted) const;

  const Program& program_;
  const World& world_;
  const CommOptions comm_;
  bool other_device_;
  std::shared_ptr<ModelImpl> module_;
  std::optional<Sharded<BlockImpl>> inner_;
  Sharded<ModelImpl> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> seen_;
  Saves saves_;
  std::vector<at::Tensor> kept_, copies_;  // gradients the program holds, and what they were then
  size_t at_ = 0;
  int64_t transitions_ = 0;
};

}  // namespace fsdp::fuzz
