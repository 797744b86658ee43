// Saves a run every few steps and resumes it: after a crash, and on another number of ranks.
//
//   08_checkpoint --ranks 2 --steps 20       two CPU ranks; end it at any time, start it again
//   08_checkpoint --ranks 3 --steps 40       three ranks go on with what two saved
//   fsdp run --nproc-per-node 2 08_checkpoint           (or torchrun, srun, mpirun): this is one rank
//
// Expected output of the second (figures differ):
//   resumed checkpoint.run/step-00000020, which 2 ranks saved: loss 1.845707 then, 1.845707 now
//   step 30  loss 1.569856  saved as checkpoint.run/step-00000030
//   step 40  loss 1.385145  saved as checkpoint.run/step-00000040
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "models/gpt2.h"

namespace {

constexpr int64_t kContext = 24;
constexpr int64_t kWords = 64;
constexpr size_t kSequences = 3 * kWords;
constexpr size_t kBatch = 12;  // of all ranks together

struct Settings {
  std::string folder = "checkpoint.run";
  int64_t steps = 40;
};

// [indices, context + 1] sequences that count up in steps of 1, 2 or 3.
torch::Tensor sequences(const std::vector<size_t>& indices) {
  const auto index = torch::tensor(std::vector<int64_t>(indices.begin(), indices.end())).unsqueeze(1);
  return (index + (1 + index.div(kWords, "floor")) * torch::arange(kContext + 1)).remainder(kWords);
}

void train(fsdp::World& world, const Settings& settings) {
  torch::manual_seed(1);
  const fsdp::models::GPT2LMHeadModel gpt(fsdp::models::GPT2Config{
      .vocab_size = kWords, .n_positions = kContext, .n_embd = 32, .n_layer = 3, .n_head = 4});
  auto model = fsdp::fully_shard(world, gpt);
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
  torch::optim::StepLR scheduler(optimizer, 25, 0.5);
  fsdp::Sampler sampler(world, kSequences);
  const auto loss_of = [&](const std::vector<size_t>& indices) {
    const auto words = sequences(indices).to(world.device());
    return model(words.narrow(1, 0, kContext), words.narrow(1, 1, kContext));
  };
  const auto measure = [&] {  // on the same sequences always
    const torch::NoGradGuard no_grad;
    return loss_of({0, 50, 100, 150}).item<double>();
  };

  // The state of this run. Random generators are part of it too.
  fsdp::RunState run{.model = model, .optimizer = &optimizer, .scheduler = &scheduler, .sampler = &sampler};
  if (fsdp::has_checkpoint(settings.folder)) {
    const fsdp::LoadReport report = fsdp::load(settings.folder, run);
    const double now = measure();
    if (world.rank() == 0)
      std::printf("resumed %s, which %d ranks saved: loss %.6f then, %.6f now\n", report.path.c_str(),
                  report.ranks, std::get<double>(run.values.at("loss")), now);
  }

  sampler.reset();  // begins the first epoch, or goes on in the middle of one
  while (run.step < settings.steps) {
    const auto indices = sampler.next(kBatch / static_cast<size_t>(world.size()));
    if (!indices) {
      sampler.reset();
      continue;
    }
    loss_of(*indices).backward();
    optimizer.step();
    optimizer.zero_grad();
    scheduler.step();
    if (++run.step % 10 != 0) continue;
    run.values["loss"] = measure();
    const std::string saved = fsdp::save(settings.folder, run, {.keep_last = 2});
    if (world.rank() == 0)
      std::printf("step %ld  loss %.6f  saved as %s\n", run.step, std::get<double>(run.values["loss"]),
                  saved.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  int ranks = 0;
  CLI::App app("Trains a small GPT; saves and resumes.");
  app.add_option("--folder", settings.folder, "of the run");
  app.add_option("--steps", settings.steps, "at which step to end");
  app.add_option("--ranks", ranks, "CPU ranks to start; without it, this process is one rank of its launcher")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  return fsdp::run_main([&] {
    const auto rank = [&](fsdp::World& world) { train(world, settings); };
    if (ranks > 0) return fsdp::run_local(ranks, rank, {.device = torch::kCPU});
    fsdp::World world = fsdp::init();
    rank(world);
  });
}
