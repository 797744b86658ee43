// Trains a Llama, saves it now and then, at once and in the background, and prints one JSON line: what a save
// costs the training, and whether what was saved is what the model held.
//
// Usage: stall_bench --folder DIR [--ranks 2 --dim 768 --layers 10 --vocab 8192 --batch 2 --seq 128]
//                    [--device cuda --bf16] [--rounds 3] [--stock]
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/llama.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string folder, device = "cpu";
  int ranks = 2, rounds = 3;
  int64_t dim = 768, layers = 10, vocab = 8192, batch = 2, seq = 128;
  bool bf16 = false, stock = false;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Training {
 public:
  Training(const fsdp::World& world, const Settings& settings)
      : device_(world.device()), model_(shard(world, settings)) {
    const fsdp::AdamWOptions options(1e-4);
    if (settings.stock)
      optimizer_ = std::make_unique<torch::optim::AdamW>(model_.parameters(), options);
    else
      optimizer_ = std::make_unique<fsdp::AdamW>(model_.parameters(), options);
    auto tokens = at::empty({settings.batch, settings.seq + 1}, at::kLong);
    tokens.random_(0, settings.vocab,
                   at::detail::createCPUGenerator(7 + static_cast<uint64_t>(world.rank())));
    tokens = tokens.to(device_);
    ids_ = tokens.narrow(1, 0, settings.seq).contiguous();
    targets_ = tokens.narrow(1, 1, settings.seq).contiguous();
  }

  // Seconds.
  double step() {
    const auto start = Clock::now();
    model_(ids_, targets_).backward();
    optimizer_->step();
    optimizer_->zero_grad();
    wait();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  void wait() const {
    if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
  fsdp::RunState run(int64_t step) { return {.model = model_, .optimizer = optimizer_.get(), .step = step}; }
  std::vector<at::Tensor> values() {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& slice : model_.parameters()) copies.push_back(slice.detach().cpu().clone());
    return copies;
  }
  void spoil() {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& slice : model_.parameters()) slice.detach().zero_();
    optimizer_->state().clear();
  }
  int64_t elements() const { return model_.num_parameters(); }

 private:
  static fsdp::Sharded<fsdp::models::LlamaForCausalLMImpl> shard(const fsdp::World& world,
                                                                 const Settings& s) {
    torch::manual_seed(0);
    fsdp::models::LlamaForCausalLM module(fsdp::models::LlamaConfig{.vocab_size = s.vocab,
                                                                    .hidden_size = s.dim,
                                                                    .num_hidden_layers = s.layers,
                                                                    .num_attention_heads = s.dim / 64,
                                                                    .max_position_embeddings = s.seq});
    return fsdp::fully_shard(world, module, {.precision = s.bf16 ? fsdp::bf16() : fsdp::fp32()});
  }

  at::Device device_;
  fsdp::Sharded<fsdp::models::LlamaForCausalLMImpl> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  at::Tensor ids_, targets_;
};

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!a[i].equal(b[i])) return false;
  return a.size() == b.size();
}

// Ranks go on together: a step needs all of them.
bool on_any_rank(fsdp::Comm& comm, at::Device device, bool here) {
  at::Tensor count = at::full({1}, here ? 1 : 0, at::TensorOptions().dtype(at::kFloat).device(device));
  comm.all_reduce(count, fsdp::ReduceOp::sum, "busy").wait();
  return count.item<float>() > 0;
}

void measure(fsdp::World& world, const Settings& settings) {
  Training training(world, settings);
  fsdp::Comm comm = fsdp::Comm::create(world);
  for (int i = 0; i < 4; ++i) training.step();
  std::vector<double> plain, sync, stall, beside;
  fsdp::BackgroundSaver saver(settings.folder + "/beside", {.keep_last = 1});
  bool bits = true;
  double load_seconds = 0;
  for (int round = 0; round < settings.rounds + 1; ++round) {  // the first makes memory and files
    for (int i = 0; i < 3; ++i) plain.push_back(training.step());
    training.wait();
    auto start = Clock::now();
    const std::string path = fsdp::save(settings.folder + "/at_once", training.run(round), {.keep_last = 1});
    sync.push_back(std::chrono::duration<double>(Clock::now() - start).count());

    const auto held = training.values();
    const auto before = saver.stats();
    saver.save(training.run(round));
    double seconds = 0;
    int steps = 0;
    do {
      seconds += training.step();
      ++steps;
    } while (on_any_rank(comm, world.device(), saver.busy()) || steps < 2);
    const auto after = saver.stats();
    stall.push_back(after.seconds_in_save - before.seconds_in_save + after.seconds_before_writes -
                    before.seconds_before_writes);
    beside.push_back(seconds / steps);
    const std::string saved = saver.wait();
    for (const std::string& one : {path, saved}) {
      training.spoil();
      fsdp::RunState run = training.run(0);
      start = Clock::now();
      fsdp::load(one, run);
      training.wait();
      load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
      bits = bits && same(training.values(), held);
    }
    if (round == 0)
      for (auto* list : {&plain, &sync, &stall, &beside}) list->clear();
  }
  if (world.rank() != 0) return;
  const nlohmann::ordered_json line{{"bench", "stall"},
                                    {"device", settings.device},
                                    {"ranks", settings.ranks},
                                    {"optimizer", settings.stock ? "torch::optim::AdamW" : "fsdp::AdamW"},
                                    {"params", training.elements()},
                                    {"bytes", training.elements() * 12},
                                    {"save_seconds", median(sync)},
                                    {"load_seconds", load_seconds},
                                    {"stall_seconds", median(stall)},
                                    {"async_stall_vs_sync", median(stall) / median(sync)},
                                    {"step_seconds", median(plain)},
                                    {"step_seconds_beside", median(beside)},
                                    {"staging_bytes", saver.stats().staging_bytes},
                                    {"bits_equal", bits},
                                    {"version", fsdp::version()}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("What saving costs a training");
  app.add_option("--folder", settings.folder, "an existing folder to write into")->required();
  app.add_option("--ranks", settings.ranks, "processes to start")->check(CLI::Range(1, 64));
  app.add_option("--rounds", settings.rounds, "saves of each kind")->check(CLI::Range(1, 200));
  app.add_option("--dim", settings.dim, "hidden size, a multiple of 64");
  app.add_option("--layers", settings.layers, "decoder layers");
  app.add_option("--vocab", settings.vocab, "tokens there are");
  app.add_option("--batch", settings.batch, "sequences of a rank");
  app.add_option("--seq", settings.seq, "tokens of a sequence");
  app.add_option("--device", settings.device, "cpu or cuda");
  app.add_flag("--bf16", settings.bf16, "compute in bf16");
  app.add_flag("--stock", settings.stock, "torch::optim::AdamW instead of ours");
  CLI11_PARSE(app, argc, argv);
  try {
    fsdp::run_local(settings.ranks, [&](fsdp::World& world) { measure(world, settings); },
                    {.device = at::Device(settings.device)});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stall_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
