// A rank of a run whose every value says at which step it was saved. stopped_ranks_test.py stops it.
//
// saving_rank FOLDER save STEPS: goes on with the run in FOLDER, if there is one, and saves after each of so
//   many steps. Rank 0 prints "saved <step>". A save that fails is told, and the run goes on.
// saving_rank FOLDER check: loads the run, and prints its step. Fails if a value is of another step.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <string>

namespace {

class Run {
 public:
  explicit Run(const fsdp::World& world)
      : model_(fsdp::fully_shard(world, make_net(), {.wrap = fsdp::by_type<torch::nn::LinearImpl>()})),
        optimizer_(model_.parameters(), fsdp::AdamWOptions(1e-2)),
        state_{.model = model_, .optimizer = &optimizer_} {
    model_(torch::ones({2, 13})).sum().backward();  // makes the moments
    optimizer_.step();
    optimizer_.zero_grad();
  }

  int64_t step() const { return state_.step; }
  void load(const std::string& folder) { fsdp::load(folder, state_); }

  // Of the next step.
  std::string save(const std::string& folder) {
    ++state_.step;
    const torch::NoGradGuard no_grad;
    for (const auto& [tensor, half] : tensors()) tensor.fill_(static_cast<double>(step()) + half);
    state_.values["step"] = step();
    return fsdp::save(folder, state_, {.keep_last = 2});
  }

  void check() {
    const bool value = std::get<int64_t>(state_.values.at("step")) == step();
    TORCH_CHECK(value, "the value in step ", step(), " is of another step");
    for (const auto& [tensor, half] : tensors())
      TORCH_CHECK(tensor.eq(static_cast<double>(step()) + half).all().item<bool>(), "a tensor in step ",
                  step(), " has elements of another");
  }

 private:
  static torch::nn::Sequential make_net() {
    return torch::nn::Sequential(torch::nn::Linear(13, 7), torch::nn::Linear(7, 5));
  }

  // With what is added to the step in them.
  std::vector<std::pair<at::Tensor, double>> tensors() {
    std::vector<std::pair<at::Tensor, double>> all;
    for (const at::Tensor& slice : model_.parameters()) {
      if (slice.numel() == 0) continue;
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *optimizer_.state().at(slice.unsafeGetTensorImpl()));
      all.insert(all.end(), {{slice.detach(), 0.0}, {state.exp_avg(), 0.25}, {state.exp_avg_sq(), 0.5}});
    }
    return all;
  }

  fsdp::Sharded<torch::nn::SequentialImpl> model_;
  fsdp::AdamW optimizer_;
  fsdp::RunState state_;
};

void say(const std::string& words) {
  std::puts(words.c_str());
  std::fflush(stdout);
}

void save_steps(fsdp::World& world, const std::string& folder, int steps) {
  Run run(world);
  if (fsdp::has_checkpoint(folder)) run.load(folder);
  for (int i = 0; i < steps; ++i) try {
      run.save(folder);
      if (world.rank() == 0) say("saved " + std::to_string(run.step()));
    } catch (const fsdp::IoError& error) {
      if (world.rank() == 0) say("not saved: " + std::string(error.what()));
    }
}

void check(fsdp::World& world, const std::string& folder) {
  Run run(world);
  run.load(folder);
  run.check();
  say("step " + std::to_string(run.step()));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[2] : "";
  if (what != "check" && (what != "save" || argc != 4)) {
    std::fprintf(stderr, "usage: saving_rank FOLDER (save STEPS | check)\n");
    return 2;
  }
  return fsdp::run_main([&] {
    fsdp::World world = fsdp::init();
    if (what == "check")
      check(world, argv[1]);
    else
      save_steps(world, argv[1], std::stoi(argv[3]));
  });
}
