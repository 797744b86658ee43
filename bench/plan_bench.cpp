// Counts the collectives of training steps that are more than a forward and a backward. Prints JSON lines.
//
// Usage: plan_bench [--ranks 2 --blocks 24]
// What the programs do, and what is counted, is in bench/README.md.
#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWidth = 256;
constexpr int kRounds = 4;  // of which the last is counted

// Linear layers, a unit each, of which a call uses some.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int count) {
    for (int i = 0; i < count; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
  }
  at::Tensor forward(at::Tensor x, const std::vector<bool>& used) {
    for (size_t i = 0; i < blocks.size(); ++i)
      if (used[i]) x = torch::tanh(blocks[i](x));
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> blocks;
};

using Model = fsdp::Sharded<StackImpl>;
using Used = std::vector<bool>;

struct Program {
  const char* name;
  int steps;      // of a round
  int backwards;  // of a step
  std::function<void(Model&, int)> step;
};

Used first_blocks(size_t count, int depth) {
  Used used(count, false);
  for (int i = 0; i < depth; ++i) used[static_cast<size_t>(i)] = true;
  return used;
}

// Another choice in every step: few of them ever come again.
Used some_blocks(size_t count, int step) {
  std::mt19937 dice(static_cast<unsigned>(step) + 17);
  Used used(count);
  for (size_t i = 0; i < count; ++i) used[i] = dice() % 4 != 0;
  used[0] = true;
  return used;
}

at::Tensor batch() { return torch::ones({8, kWidth}); }

std::vector<Program> programs(int blocks) {
  const auto count = static_cast<size_t>(blocks);
  const Used all(count, true);
  return {
      {"plain", 4, 1, [=](Model& model, int) { model(batch(), all).backward(); }},
      {"input_gradients", 4, 6,
       [=](Model& model, int) {
         at::Tensor x = batch();
         for (int i = 0; i < 5; ++i) {
           x = x.detach().requires_grad_();
           x = x + 0.01 * torch::autograd::grad({model(x, all)}, {x})[0].sign();
         }
         model(x.detach().requires_grad_(), all).backward();  // as behind an embedding
       }},
      {"evaluation_between", 4, 1,
       [=](Model& model, int) {
         const at::Tensor loss = model(batch(), all);
         {
           const at::NoGradGuard no_grad;
           model(batch() * 2, all);
         }
         loss.backward();
       }},
      {"depths", 4 * blocks, 1,
       [=](Model& model, int step) { model(batch(), first_blocks(count, 1 + step % blocks)).backward(); }},
      {"dropped_blocks", 4 * blocks, 1,
       [=](Model& model, int step) { model(batch(), some_blocks(count, step)).backward(); }},
      {"keep_gathered", 4, 4,
       [=](Model& model, int) {
         const auto kept = model.keep_gathered();
         for (int i = 0; i < 4; ++i) model(batch(), all).backward();
       }},
  };
}

struct Counts {
  double gathers = 0, reduces = 0, all_reduces = 0, milliseconds = 0;
};

Counts counts_of(const Model& model) {
  Counts counts;
  const fsdp::MemoryStats stats = model.memory_stats();
  counts.gathers = static_cast<double>(stats.all_gathers);
  counts.reduces = static_cast<double>(stats.reduce_scatters);
  for (const fsdp::OpStats& one : model.comm_stats())
    if (one.op == "all_reduce") counts.all_reduces += static_cast<double>(one.count);
  return counts;
}

Counts last_round(const fsdp::World& world, const Program& program, int blocks) {
  torch::manual_seed(0);
  auto model = fsdp::fully_shard(world, std::make_shared<StackImpl>(blocks),
                                 {.wrap = fsdp::by_type<torch::nn::LinearImpl>()});
  torch::optim::SGD optimizer(model.parameters(), 1e-3);
  Counts before;
  Clock::time_point start;
  for (int step = 0; step < kRounds * program.steps; ++step) {
    if (step == (kRounds - 1) * program.steps) {
      before = counts_of(model);
      start = Clock::now();
    }
    program.step(model, step);
    optimizer.step();
    model.zero_grad();
  }
  const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
  const Counts after = counts_of(model);
  const auto steps = static_cast<double>(program.steps);
  return {.gathers = (after.gathers - before.gathers) / steps,
          .reduces = (after.reduces - before.reduces) / steps,
          .all_reduces = (after.all_reduces - before.all_reduces) / steps,
          .milliseconds = elapsed.count() / steps};
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 2, blocks = 24;
  CLI::App app("Counts the collectives of training steps; prints one JSON line per program.");
  app.add_option("--ranks", ranks, "processes to start")->check(CLI::Range(1, 64));
  app.add_option("--blocks", blocks, "units of the model")->check(CLI::Range(2, 200));
  CLI11_PARSE(app, argc, argv);
  try {
    fsdp::run_local(ranks, [&](fsdp::World& world) {
      at::set_num_threads(1);
      for (const Program& program : programs(blocks)) {
        const Counts counts = last_round(world, program, blocks);
        if (world.rank() == 0)
          std::printf(
              "{\"bench\":\"plans\",\"program\":\"%s\",\"ranks\":%d,\"units\":%d,\"backwards\":%d,"
              "\"all_gathers\":%.2f,\"reduce_scatters\":%.2f,\"all_reduces\":%.2f,\"step_ms\":%.3f}\n",
              program.name, ranks, blocks, program.backwards, counts.gathers, counts.reduces,
              counts.all_reduces, counts.milliseconds);
      }
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plan_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
