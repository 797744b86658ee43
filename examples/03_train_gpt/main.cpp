// Trains a small GPT on a few sentences, sharded over ranks, and generates text with it.
//
//   03_train_gpt --ranks 2                   two CPU ranks: processes of this machine
//   fsdp run --nproc-per-node 2 03_train_gpt            (or torchrun, srun, mpirun): this is one rank
//
// Expected output (figures differ): the units, the loss falling from 4.9 to about 0.1, the memory each rank
// holds, and
//   it says: the ranks share one model. each holds a part ...
//
// With a folder, the run is saved there at the end, and resumed if it was saved before:
//   03_train_gpt --ranks 2 --steps 250 --folder gpt.run
//   03_train_gpt --ranks 3 --steps 500 --folder gpt.run
// The first ends with a line, and the second begins with one, that show the same loss on the whole text:
//   2 ranks saved gpt.run/step-00000250: loss 0.243724
//   3 ranks resume gpt.run/step-00000250, which 2 ranks saved: loss 0.243724
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>

#include "models/gpt2.h"

namespace {

constexpr int64_t kContext = 48;
constexpr int64_t kBatch = 8;
constexpr int64_t kCharacters = 128;

struct Settings {
  int64_t steps = 500;
  std::string folder;  // of the run; empty: it is not saved
};

using Model = fsdp::Sharded<fsdp::models::GPT2LMHeadModelImpl>;

const std::string kText =
    "the ranks share one model. each holds a part of every block, and none holds it all. before a block is "
    "used its parts are gathered, and after that they are let go. what each rank learns is summed along a "
    "tree, and each keeps its share of the sum. so the model may be larger than any one rank, and the answer "
    "is the same as if it were alone. ";

torch::Tensor encode(const std::string& text) {
  auto codes = torch::empty({static_cast<int64_t>(text.size())}, torch::kLong);
  for (size_t i = 0; i < text.size(); ++i) codes[static_cast<int64_t>(i)] = static_cast<int64_t>(text[i]);
  return codes;
}

// [batch, context + 1] pieces of the text that start anywhere.
torch::Tensor draw_batch(const torch::Tensor& text) {
  const auto starts = torch::randint(text.size(0) - kContext - 1, {kBatch, 1});
  return text.index({(starts + torch::arange(kContext + 1)).to(text.device())});
}

// Every rank runs it: a forward is collective.
std::string speak(Model& model, c10::Device device, std::string text) {
  const torch::NoGradGuard no_grad;
  model.eval();
  for (int i = 0; i < 80; ++i) {
    const std::string tail = text.substr(text.size() > kContext ? text.size() - kContext : 0);
    const auto logits = model(encode(tail).unsqueeze(0).to(device), torch::Tensor());
    text += static_cast<char>(logits[0][-1].argmax().item<int64_t>());
  }
  model.train();
  return text;
}

// The loss on the whole text: the same number on every rank.
double measure(Model& model, const torch::Tensor& text) {
  const torch::NoGradGuard no_grad;
  const auto pieces = text.unfold(0, kContext + 1, kContext);
  return model(pieces.narrow(1, 0, kContext), pieces.narrow(1, 1, kContext)).item<double>();
}

void print_memory(const fsdp::MemoryStats& memory, int64_t elements, const fsdp::World& world) {
  const auto kib = [](int64_t bytes) { return static_cast<double>(bytes) / 1024; };
  const int64_t state = 4 * memory.parameter_bytes;  // gradients and two moments are as large
  std::printf(
      "each of %d ranks holds %.0f KiB of parameters, gradients and moments; one alone would hold %.0f KiB\n"
      "shared by the ranks while a step runs: %.0f KiB of gathered units; each has %.0f KiB of gradients on "
      "their way\n",
      world.size(), kib(state), kib(4 * 4 * elements), kib(memory.arena_bytes), kib(memory.buffer_bytes));
}

void train(fsdp::World& world, const Settings& settings) {
  at::set_num_threads(1);
  const bool first = world.rank() == 0;
  torch::manual_seed(1);
  const fsdp::models::GPT2LMHeadModel gpt(fsdp::models::GPT2Config{
      .vocab_size = kCharacters, .n_positions = kContext, .n_embd = 64, .n_layer = 6, .n_head = 4});
  torch::manual_seed(100 + world.rank());  // every rank draws batches of its own

  auto model = fsdp::fully_shard(world, gpt);
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(2e-3));
  if (first) {
    std::printf("%ld parameters over %d ranks, %.1f%% of them here; units:", model.num_parameters(),
                world.size(), 100 * model.local_sharding_ratio());
    for (const auto& unit : model.unit_counts()) std::printf(" %s", unit.name.c_str());
    std::printf("\n");
  }

  const auto text = encode(kText).to(world.device());
  fsdp::RunState run{.model = model, .optimizer = &optimizer};
  if (!settings.folder.empty() && fsdp::has_checkpoint(settings.folder)) {
    const fsdp::LoadReport report = fsdp::load(settings.folder, run);
    const double loss = measure(model, text);
    if (first)
      std::printf("%d ranks resume %s, which %d ranks saved: loss %.6f\n", world.size(), report.path.c_str(),
                  report.ranks, loss);
  }

  const int64_t before = run.step;
  const auto start = std::chrono::steady_clock::now();
  while (run.step < settings.steps) {
    const int64_t step = ++run.step;
    const auto batch = draw_batch(text);
    const auto loss = model(batch.narrow(1, 0, kContext), batch.narrow(1, 1, kContext));
    loss.backward();
    const auto norm = model.clip_grad_norm_(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (first && (step == 1 || step % 50 == 0)) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      std::printf("step %3ld of %ld  loss %.4f  gradient norm %.2f  %.1f ms a step\n", step, settings.steps,
                  loss.item<double>(), norm.item<double>(),
                  1e3 * seconds / static_cast<double>(step - before));
      std::fflush(stdout);
    }
  }
  if (first) print_memory(model.memory_stats(), model.num_parameters(), world);
  const std::string said = speak(model, world.device(), "the ranks ");
  if (first) std::printf("it says: %s\n", said.c_str());
  if (settings.folder.empty()) return;
  const double loss = measure(model, text);
  const std::string saved = fsdp::save(settings.folder, run);
  if (first) std::printf("%d ranks saved %s: loss %.6f\n", world.size(), saved.c_str(), loss);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  int ranks = 0;
  CLI::App app("Trains a small GPT, sharded over ranks.");
  app.add_option("--steps", settings.steps, "at which step to end");
  app.add_option("--folder", settings.folder, "to save the run in, and to resume it from");
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
