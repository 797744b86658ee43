#include "fuzz/oracle.h"

#include <functional>

#include "support/plain_trainer.h"

namespace fsdp::fuzz {

using at::Tensor;

namespace {

using testing::PlainTrainer;

class Plain {
 public:
  Plain(const Program& program, bool other_device)
      : program_(program),
        other_device_(other_device),
        model_(make_model(program.net)),
        trainer_(*model_, program.ranks,
                 {.compute =
                      [&program](const std::string&, at::ScalarType master) {
                        return c10::isFloatingType(master) ? compute_type(program) : master;
                      },
                  .divide_by = static_cast<double>(program.divide)}) {
    params_ = parameters_of(*model_);
    optimizer_ = make_optimizer(program_, masters_);
  }

  Record run(size_t at) {
    at_ = at;
    record_ = {};
    record_.seen.resize(static_cast<size_t>(program_.ranks));
    act(program_.actions[at]);
    if (program_.in_backward && goes_backward(program_.actions[at])) {
      step();
      forget();
    }
    for (const Tensor& m : masters_) {
      record_.grads.push_back(m.grad().defined() ? m.grad().clone() : Tensor());
      record_.weights.push_back(m.detach().clone());
    }
    return std::move(record_);
  }

 private:
  Tensor forward(int rank, int k) {
    return model_->forward(input(program_, at_, rank, k).to(compute_type(program_)),
                           way_of(program_, program_.actions[at_], rank, k, other_device_));
  }
  void see(int rank, const Tensor& value) {
    record_.seen[static_cast<size_t>(rank)].push_back(value.detach().clone());
  }
  void see_all(const std::string& under, bool rank0_only = false) {
    for (int r = 0; r < (rank0_only ? 1 : program_.ranks); ++r) {
      size_t i = 0;
      std::vector<const c10::TensorImpl*> done;
      for (auto& item : model_->named_parameters()) {
        if (std::find(done.begin(), done.end(), item.value().unsafeGetTensorImpl()) != done.end()) continue;
        done.push_back(item.value().unsafeGetTensorImpl());
        if (item.key().starts_with(under)) see(r, masters_[i]);
        ++i;
      }
    }
  }
  void forget() {
    for (const Tensor& m : masters_) m.mutable_grad() = Tensor();
    for (int r = 0; r < program_.ranks; ++r) trainer_.drop(r);
  }
  void each_rank(const std::function<void(int)>& fn) {
    for (int r = 0; r < program_.ranks; ++r) {
      fn(r);
      trainer_.take(r);
    }
  }
  void train(bool keep_back = false) {
    each_rank([&](int r) { loss_of(forward(r, 0)).backward(); });
    if (!keep_back || program_.ranks == 1) trainer_.reduce();
  }
  void keep_back_block(const std::string& block) {
    each_rank([&](int r) { loss_of(forward(r, 0)).backward(); });
    trainer_.reduce([&](const std::string& name) { return !name.starts_with(block + "."); });
  }
  // Gradients of the mean over all counted tokens: what ranks add up is divided afterwards.
  void train_weighted(const Action& action) {
    int64_t total = 0;
    for (int r = 0; r < program_.ranks; ++r)
      for (const int64_t count : token_counts(action, r)) total += count;
    const double divisor = program_.divide > 0 ? program_.divide : program_.ranks;
    for (int k = 0; k < 2; ++k)
      each_rank([&](int r) {
        const auto count = static_cast<double>(token_counts(action, r)[static_cast<size_t>(k)]);
        const double weight = total > 0 ? count * divisor / static_cast<double>(total) : 0.0;
        (loss_of(forward(r, k)) * weight).backward();
      });
    trainer_.reduce();
  }
  void average() {
    std::vector<Tensor> averages;
    for (const Tensor& m : masters_) averages.push_back(m.detach().clone());
    change_all(0.98);
    for (size_t i = 0; i < averages.size(); ++i) {
      if (averages[i].is_floating_point() || averages[i].is_complex())
        averages[i].mul_(0.75).add_(masters_[i].detach(), 0.25);
      else
        averages[i].copy_(masters_[i]);
      for (int r = 0; r < program_.ranks; ++r) see(r, averages[i]);
    }
  }
  void be_told() {
    forget();
    train();
    const at::NoGradGuard no_grad;
    for (Tensor& m : masters_)
      if (m.grad().defined()) m.detach().sub_(m.grad(), 0.01);
    forget();
    weights_changed();
  }
  void evaluate(int k) {
    const at::NoGradGuard no_grad;
    for (int r = 0; r < program_.ranks; ++r) see(r, forward(r, k));
  }
  void see_input_gradients(int k) {
    for (int r = 0; r < program_.ranks; ++r) {
      const Tensor x = input(program_, at_, r, k).requires_grad_();
      const Tensor y = model_->forward(x.to(compute_type(program_)),
                                       way_of(program_, program_.actions[at_], r, k, other_device_));
      see(r, torch::autograd::grad({y.sum()}, {x})[0]);
    }
    trainer_.reduce();  // what was kept back
  }
  void weights_changed() {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < params_.size(); ++i) params_[i].copy_(masters_[i]);
  }
  void change_all(double factor) {
    for (Tensor& m : masters_) change(m, factor);
    weights_changed();
  }
  void step() {
    optimizer_->step();
    weights_changed();
  }
  void clip(double max_norm, double p);
  void act(const Action& action);
  void act_on_gradients(const Action& action);
  void act_on_values(const Action& action);

  const Program& program_;
  bool other_device_;
  std::shared_ptr<ModelImpl> model_;
  PlainTrainer trainer_;
  std::vector<Tensor> masters_ = trainer_.parameters();  // what is trained
  std::vector<Tensor> params_;                           // of the model, in the type it computes with
  std::vector<Tensor> kept_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  size_t at_ = 0;
  Record record_;
};

void Plain::clip(double max_norm, double p) {
  Tensor total = torch::zeros({}, torch::kDouble);
  for (const Tensor& m : masters_) {
    if (!m.grad().defined()) continue;
    const Tensor norm = torch::norm(m.grad().abs(), p);
    total = std::isinf(p) ? torch::maximum(total, norm) : (total + norm.pow(p));
  }
  if (!std::isinf(p)) total = total.pow(1 / p);
  const Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (Tensor& m : masters_)
    if (m.grad().defined()) m.mutable_grad().mul_(factor);
}

void Plain::act(const Action& action) {
  switch (action.what) {
    case Do::backward:
    case Do::drop_block:
    case Do::gates:
    case Do::synchronized:
      return train();
    case Do::kept_back:
      return train(true);
    case Do::kept_back_block:
      if (program_.ranks == 1 || !holds_blocks(program_)) return train(true);
      return keep_back_block("block" + std::to_string(action.a % program_.net.blocks));
    case Do::kept_in_row:
    case Do::kept_gathered:
      train();
      each_rank([&](int r) { loss_of(forward(r, 1)).backward(); });
      return trainer_.reduce();
    case Do::told:
      return be_told();
    case Do::joint_backward:
    case Do::gate_in_one_of_two:
      each_rank([&](int r) {
        const Tensor first = loss_of(forward(r, 0));  // in this order: it shows in bits of sums
        (first + loss_of(forward(r, 1))).backward();
      });
      return trainer_.reduce();
    case Do::two_backwards:
      each_rank([&](int r) {
        const Tensor first = loss_of(forward(r, 0));
        loss_of(forward(r, 1)).backward();
        trainer_.take(r);
        first.backward();
      });
      return trainer_.reduce();
    case Do::forward_only:
      for (int r = 0; r < program_.ranks; ++r) see(r, forward(r, 0));
      return;
    case Do::evaluate:
    case Do::evaluate_inference:
    case Do::train_off_and_on:
      return evaluate(0);
    case Do::evaluate_between:
      for (int k = 1; k <= 1 + action.a % 2; ++k) evaluate(k);
      each_rank([&](int r) {
        const Tensor first = loss_of(forward(r, 0));
        (action.b % 3 == 0 ? first + loss_of(forward(r, 3)) : first).backward();
      });
      return trainer_.reduce();
    case Do::retain_graph:
      each_rank([&](int r) {
        const Tensor loss = loss_of(forward(r, 0));
        loss.backward({}, /*retain_graph=*/true);
        trainer_.take(r);
        loss.backward();
      });
      return trainer_.reduce();
    case Do::input_gradients:
      each_rank([&](int r) {
        const Tensor x = input(program_, at_, r, 0).requires_grad_();
        const Tensor y = model_->forward(x.to(compute_type(program_)), {});
        const Tensor g = torch::autograd::grad({y.sum()}, {x}, {}, {}, /*create_graph=*/true)[0];
        (g.square().mean() + loss_of(y)).backward();
      });
      return trainer_.reduce();
    case Do::inputs_alone:
      return see_input_gradients(0);
    case Do::attack_and_train:
      see_input_gradients(0);
      see_input_gradients(1);
      each_rank([&](int r) { loss_of(forward(r, 2)).backward(); });
      return trainer_.reduce();
    case Do::nested_scopes:
      train(true);
      evaluate(1);
      see_input_gradients(2);
      each_rank([&](int r) { loss_of(forward(r, 3)).backward(); });
      return trainer_.reduce();
    case Do::given_alone:
      each_rank([&](int r) {
        const Tensor x = input(program_, at_, r, 0).requires_grad_();
        const Tensor& given = action.a % 2 == 0 ? x : model_->in->weight;
        const Tensor y = model_->forward(x.to(compute_type(program_)), {});
        torch::autograd::backward({loss_of(y)}, {}, false, false, {given});
        if (action.a % 2 == 0) see(r, x.grad());
      });
      return trainer_.reduce();
    case Do::write_between:
      evaluate(0);
      change_all(0.97);
      return evaluate(1);
    case Do::loop_inside:
      for (int k = 0; k < 2; ++k) {
        each_rank([&](int r) { loss_of(forward(r, k)).backward(); });
        trainer_.reduce();
        step();
        forget();
      }
      return;
    case Do::use_pointer:
      for (int r = 0; r < program_.ranks; ++r) see(r, params_.front().detach().to(at::kDouble).flatten()[0]);
      return evaluate(0);
    case Do::averaged:
      return average();
    case Do::weighted:
      return train_weighted(action);
    case Do::by_hand:
      return action.a % 4 == 0 ? evaluate(0) : train();
    case Do::fail_forward:
    case Do::insight:
    case Do::save_and_load:
    case Do::save_beside:
    case Do::save_crowd:
    case Do::take_out_and_in:
      return;
    case Do::fail_backward:
      return forget();
    default:
      return act_on_gradients(action);
  }
}

void Plain::act_on_gradients(const Action& action) {
  switch (action.what) {
    case Do::step:
      return step();
    case Do::step_clipped:
      clip(0.1 * (1 + action.a), 2);
      step();
      return forget();
    case Do::new_optimizer:
      optimizer_ = make_optimizer(program_, masters_);
      return;
    case Do::zero_model:
      return forget();
    case Do::zero_optimizer:
      for (Tensor& m : masters_) m.mutable_grad() = Tensor();
      return;
    case Do::zero_some:
      for (size_t i = 1; i < masters_.size(); i += 2) masters_[i].mutable_grad() = Tensor();
      return;
    case Do::scale_gradients:
    case Do::write_gradients:
      for (Tensor& m : masters_)
        if (m.grad().defined()) m.mutable_grad().mul_(0.5);
      return;
    case Do::clip_norm:
      return clip(0.1 * (1 + action.a), 2);
    case Do::clip_infinity:
      return clip(0.01 * (1 + action.a), std::numeric_limits<double>::infinity());
    case Do::clip_value:
      for (Tensor& m : masters_)
        if (m.grad().defined() && !m.is_complex()) m.mutable_grad().clamp_(-0.02, 0.02);
      return;
    case Do::penalty:
      return penalty_over(masters_).backward();
    case Do::penalty_first:
    case Do::penalty_last:
      train();
      return penalty_over(masters_).backward();
    case Do::penalty_kept_back:
      train(true);
      return penalty_over(masters_).backward();
    case Do::keep_gradients:
      kept_.clear();
      for (Tensor& m : masters_) kept_.push_back(m.grad().defined() ? m.grad().clone() : Tensor());
      return forget();
    case Do::add_kept_gradients:
      for (size_t i = 0; i < kept_.size(); ++i) {
        Tensor& grad = masters_[i].mutable_grad();
        if (kept_[i].defined() && masters_[i].requires_grad())
          grad = grad.defined() ? kept_[i] + grad : kept_[i].clone();
      }
      kept_.clear();
      return;
    default:
      return act_on_values(action);
  }
}

void Plain::act_on_values(const Action& action) {
  switch (action.what) {
    case Do::freeze:
    case Do::freeze_and_look: {
      forget();
      const size_t i = frozen_by(action, params_.size());
      params_[i].set_requires_grad(false);
      masters_[i].set_requires_grad(false);
      if (action.what == Do::freeze_and_look) see_all("");
      return evaluate(0);
    }
    case Do::thaw:
      for (size_t i = 0; i < params_.size(); ++i) {
        if (!params_[i].is_floating_point() && !params_[i].is_complex()) continue;
        params_[i].set_requires_grad(true);
        masters_[i].set_requires_grad(true);
      }
      return evaluate(0);
    case Do::look:
      return see_all("");
    case Do::look_at_block:
      return see_all("block" + std::to_string(action.a % program_.net.blocks) + ".");
    case Do::look_on_host:
      return see_all("", /*rank0_only=*/true);
    case Do::look_at_gradients:
      for (int r = 0; r < program_.ranks; ++r)
        for (const Tensor& m : masters_)
          if (m.grad().defined()) see(r, m.grad());
      return;
    case Do::write_whole:
      return change_all(1.01);
    case Do::write_data:
      return change_all(0.99);
    case Do::write_slices:
      return change_all(0.98);
    default:
      TORCH_CHECK(false, "an action that the plain loop does not know: ", name_of(action.what));
  }
}

}  // namespace

std::vector<Record> run_plain(const Program& program, bool other_device) {
  Plain plain(program, other_device);
  std::vector<Record> records;
  for (size_t i = 0; i < program.actions.size(); ++i) records.push_back(plain.run(i));
  return records;
}

}  // namespace fsdp::fuzz
