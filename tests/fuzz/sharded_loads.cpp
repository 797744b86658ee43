// Saves of a random program, and loads into other groups, with another model or with ignored parameters.
#include "fuzz/sharded_run.h"

namespace fsdp::fuzz {

using at::Tensor;

// Every second slice is in another group.
std::unique_ptr<torch::optim::Optimizer> Run::in_groups(bool odd_first, double lr_of_odd) const {
  std::vector<Tensor> halves[2];
  for (size_t i = 0; i < model_.parameters().size(); ++i) halves[i % 2].push_back(model_.parameters()[i]);
  auto optimizer = make_optimizer(program_, halves[odd_first ? 1 : 0]);
  optimizer->add_param_group(
      {halves[odd_first ? 0 : 1], optimizer->param_groups().front().options().clone()});
  optimizer->param_groups()[odd_first ? 0 : 1].options().set_lr(lr_of_odd);
  return optimizer;
}

void Run::load_groups_in_another_order() {
  RunState run{.model = model_, .step = static_cast<int64_t>(at_), .rng = false};
  const auto saved = in_groups(false, 0.75), loaded = in_groups(true, 0.25);
  std::swap(saved->state(), optimizer_->state());
  run.optimizer = saved.get();
  save(saves_.folder(world_) + "/groups", run, {.keep_last = 1});
  spoil();
  run.optimizer = loaded.get();
  load(saves_.folder(world_) + "/groups", run);
  TORCH_CHECK(loaded->param_groups()[0].options().get_lr() == 0.75, "groups were mixed up");
  TORCH_CHECK(loaded->param_groups()[1].options().get_lr() != 0.75, "groups were mixed up");
  std::swap(loaded->state(), optimizer_->state());
}

void Run::load_with_another_model() {
  auto other = fully_shard(world_, make_model(program_.net), options_of(program_, comm_));
  const StateDict before = state_dict(other);
  RunState run{.model = model_,
               .optimizer = optimizer_.get(),
               .step = static_cast<int64_t>(at_),
               .rng = false,
               .parts = {{"other", {.model = other}}}};
  save(saves_.folder(world_) + "/parts", run, {.keep_last = 1});
  spoil();
  const at::NoGradGuard no_grad;
  for (Tensor& slice : other.parameters()) slice.detach().zero_();
  load(saves_.folder(world_) + "/parts", run);
  const StateDict after = state_dict(other);
  for (const auto& item : before)
    TORCH_CHECK(after[item.key()].boxes.front().tensor.equal(item.value().boxes.front().tensor),
                "another model of the run has another ", item.key());
}

void Run::load_with_ignored_parameters() {
  auto module = make_model(program_.net);
  Tensor &weight = module->blocks[0]->down->weight, &bias = module->out->bias;
  weight.set_data(weight.detach().t().contiguous().t());  // not row-major
  module->to(world_.device());
  ShardOptions options = options_of(program_, comm_);
  options.precision = {};
  options.ignored = {"block0.down", "out.bias"};
  auto model = fully_shard(world_, module, options);
  auto params = model.parameters();
  params.insert(params.end(), {weight, bias});
  const auto optimizer = make_optimizer(program_, params);
  const auto train = [&] {  // the same on every rank: gradients of ignored parameters are not averaged
    loss_of(model(input(program_, at_, 0, 0).to(world_.device()), Way{})).backward();
    optimizer->step();
    optimizer->zero_grad();
  };
  const auto held = [&] {
    std::vector<Tensor> tensors = {weight.detach().clone(), bias.detach().clone()};
    for (const StateDict& dict : {state_dict(model), optimizer_state_dict(model, *optimizer)})
      for (const auto& item : dict)
        for (const auto& box : item.value().boxes) tensors.push_back(box.tensor.detach().clone());
    return tensors;
  };
  train();
  const std::vector<Tensor> before = held();
  const RunState run{.model = model, .optimizer = optimizer.get(), .step = static_cast<int64_t>(at_)};
  BackgroundSaver saver(saves_.folder(world_) + "/ignored", {.keep_last = 1}, 512);
  saver.save(run);
  train();
  saver.wait();
  RunState loaded{.model = model, .optimizer = optimizer.get(), .rng = false};
  load(saves_.folder(world_) + "/ignored", loaded);
  const std::vector<Tensor> after = held();
  TORCH_CHECK(after.size() == before.size(), "other tensors came back than were saved");
  for (size_t i = 0; i < before.size(); ++i)
    TORCH_CHECK(after[i].equal(before[i]), "tensor ", i, " of a model with ignored parameters came back as ",
                after[i], ", saved was ", before[i]);
}

void Run::save_and_load() {
  const int kind = program_.actions[at_].b % 4;
  if (kind == 1 && !program_.in_backward) return load_groups_in_another_order();
  if (kind == 2) return load_with_another_model();
  if (kind == 3 && !other_device_) return load_with_ignored_parameters();  // the toy has no strided copies
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

}  // namespace fsdp::fuzz
