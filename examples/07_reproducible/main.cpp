// Reproducible mode: the same bits on any number of ranks, with dropout, clipping and accumulation.
//
//   07_reproducible --ranks all              1, 2 and 4 CPU ranks in turn: processes of this machine
//   07_reproducible --ranks 8                that many
//   fsdp run --nproc-per-node 4 07_reproducible         (or torchrun, srun, mpirun): this is one rank
//
// Expected output (figures differ between kinds of machines, not between the lines):
//   1 ranks, 8 microbatches each: loss 2.36014342, gradient norm 0.557397008, state 83915f1176e0c618
//   2 ranks, 4 microbatches each: loss 2.36014342, gradient norm 0.557397008, state 83915f1176e0c618
//   4 ranks, 2 microbatches each: loss 2.36014342, gradient norm 0.557397008, state 83915f1176e0c618
#include <ATen/CPUGeneratorImpl.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "models/gpt2.h"

namespace {

constexpr int kMicrobatches = 8;  // of a step, over all ranks
constexpr int kSteps = 30;
constexpr int64_t kContext = 24;
constexpr int64_t kWords = 64;

// Microbatch `index` of the run, whichever rank asks: sequences that count up in steps of 1, 2 or 3.
torch::Tensor microbatch(int64_t index) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
  const auto start = torch::randint(kWords, {4, 1}, generator);
  const auto stride = torch::randint(1, 4, {4, 1}, generator);
  return (start + stride * torch::arange(kContext + 1)).remainder(kWords);
}

void train(fsdp::World& world) {
  torch::manual_seed(1);
  const fsdp::models::GPT2LMHeadModel gpt(fsdp::models::GPT2Config{.vocab_size = kWords,
                                                                   .n_positions = kContext,
                                                                   .n_embd = 32,
                                                                   .n_layer = 3,
                                                                   .n_head = 4,
                                                                   .dropout = 0.1});
  auto model = fsdp::fully_shard(
      world, gpt, {.reproducible = fsdp::Reproducible{.microbatches = kMicrobatches, .seed = 7}});
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(3e-3));

  double loss = 0, norm = 0;  // of the last step: microbatch 0, and the whole gradient
  for (int step = 0; step < kSteps; ++step) {
    for (int i = world.rank(); i < kMicrobatches; i += world.size()) {  // one backward each: they add up
      const auto words = microbatch(step * kMicrobatches + i).to(world.device());
      const auto found = model(words.narrow(1, 0, kContext), words.narrow(1, 1, kContext));
      found.backward();
      if (i == 0) loss = found.item<double>();
    }
    norm = model.clip_grad_norm_(0.5).item<double>();  // gradients are there after the last microbatch
    optimizer.step();
    optimizer.zero_grad();
  }
  const uint64_t state = model.state_hash();
  if (world.rank() == 0)
    std::printf("%d ranks, %d microbatches each: loss %.9g, gradient norm %.9g, state %016lx\n", world.size(),
                kMicrobatches / world.size(), loss, norm, state);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || argv[2] != std::string("all")) return fsdp::run_main(argc, argv, train);
  for (std::string ranks : {"1", "2", "4"}) {
    argv[2] = ranks.data();
    if (const int failed = fsdp::run_main(argc, argv, train)) return failed;
  }
  return 0;
}
