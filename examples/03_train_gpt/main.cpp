// Trains a small GPT on a few sentences, sharded over ranks, and lets it speak.
//
//   03_train_gpt --ranks 2                   two CPU ranks: processes of this machine
//   torchrun --no-python --nproc-per-node 2 03_train_gpt          (or srun, mpirun): this process is one rank
//
// Expected output (figures differ): the units, the loss falling from 4.9 to about 0.1, the memory each rank
// holds, and
//   it says: the ranks share one model. each holds a part ...
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "models/gpt2.h"

namespace {

constexpr int64_t kContext = 48;
constexpr int64_t kBatch = 8;
constexpr int kSteps = 500;
constexpr int64_t kCharacters = 128;

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
  return text.index({starts + torch::arange(kContext + 1)});
}

// Every rank runs it: a forward is collective.
std::string speak(fsdp::Sharded<fsdp::models::GPT2LMHeadModelImpl>& model, c10::Device device,
                  std::string text) {
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

void print_memory(const fsdp::MemoryStats& memory, int64_t elements, const fsdp::World& world) {
  const auto kib = [](int64_t bytes) { return static_cast<double>(bytes) / 1024; };
  const int64_t state = 4 * memory.parameter_bytes;  // gradients and two moments are as large
  std::printf(
      "each of %d ranks holds %.0f KiB of parameters, gradients and moments; one alone would hold %.0f KiB\n"
      "shared by the ranks while a step runs: %.0f KiB of gathered units; each has %.0f KiB of gradients on "
      "their way\n",
      world.size(), kib(state), kib(4 * 4 * elements), kib(memory.arena_bytes), kib(memory.buffer_bytes));
}

void train(fsdp::World& world) {
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

  const auto text = encode(kText);
  const auto start = std::chrono::steady_clock::now();
  for (int step = 1; step <= kSteps; ++step) {
    const auto batch = draw_batch(text).to(world.device());
    const auto loss = model(batch.narrow(1, 0, kContext), batch.narrow(1, 1, kContext));
    loss.backward();
    const auto norm = model.clip_grad_norm_(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (first && (step == 1 || step % 50 == 0)) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      std::printf("step %3d of %d  loss %.4f  gradient norm %.2f  %.1f ms a step\n", step, kSteps,
                  loss.item<double>(), norm.item<double>(), 1e3 * seconds / step);
      std::fflush(stdout);
    }
  }
  if (first) print_memory(model.memory_stats(), model.num_parameters(), world);
  const std::string said = speak(model, world.device(), "the ranks ");
  if (first) std::printf("it says: %s\n", said.c_str());
}

}  // namespace

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
