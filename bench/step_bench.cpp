// Times training steps of a Llama and prints one JSON line.
//
// Usage: step_bench --ranks 4 --data DIR [--dim 256 --layers 6 --vocab 8192 --batch 2 --seq 128] [--plain]
// The counterpart of bench/peers/torch_step.py; what is measured is in bench/README.md.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/fsdp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/fused.h"
#include "models/llama.h"

namespace {

using fsdp::models::LlamaForCausalLM;
using Clock = std::chrono::steady_clock;

constexpr double kLearningRate = 1e-4;
constexpr int64_t kHeadDim = 64;

struct Settings {
  int ranks = 1;
  int64_t dim = 256, layers = 6, vocab = 8192, batch = 2, seq = 128;
  int steps = 15, warmup = 3;
  std::string device = "cpu";
  std::string data;  // folder of start weights and tokens; empty: drawn here
  bool bf16 = false;
  bool plain = false;          // the model alone, not sharded
  bool capture = false;        // forward and backward as one CUDA graph
  bool reproducible = false;   // the same bits for every number of ranks
  bool deterministic = false;  // LibTorch's deterministic kernels
  bool operators = false;      // no kernels of models/: LibTorch's operators alone
  bool recompute = false;      // activations of layers again in backward
  bool step_in_backward = false;
  bool offload = false;       // parameters, gradients and moments in host memory
  bool bf16_moments = false;  // of AdamW
  std::string prefetch;       // backward_prefetch, with shards in slots; empty: as usual
};

struct Batch {
  at::Tensor ids, targets;  // [batch, seq]
};

// This rank's figures; summed over the ranks before they are printed.
struct Figures {
  std::vector<double> milliseconds;  // of every timed step
  std::vector<double> losses;        // of every step, warm-up included
  double pss_growth = 0, pss_peak = 0, device_peak = 0;
};

// Fills `tensor` from a file of its raw values.
void read_raw(const std::filesystem::path& path, const at::Tensor& tensor) {
  TORCH_CHECK(std::filesystem::exists(path), "no file ", path.string());
  TORCH_CHECK(std::filesystem::file_size(path) == tensor.nbytes(), path.string(), " should have ",
              tensor.nbytes(), " bytes");
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  TORCH_CHECK(file.good(), "cannot read ", path.string());
}

fsdp::models::BlockRunner blocks_of(const Settings& settings) {
  return settings.recompute ? fsdp::recompute_blocks() : fsdp::models::BlockRunner();
}

LlamaForCausalLM make_model(const Settings& settings, at::Device device) {
  torch::manual_seed(0);
  LlamaForCausalLM model(fsdp::models::LlamaConfig{.vocab_size = settings.vocab,
                                                   .hidden_size = settings.dim,
                                                   .num_hidden_layers = settings.layers,
                                                   .num_attention_heads = settings.dim / kHeadDim,
                                                   .max_position_embeddings = settings.seq,
                                                   .run_block = blocks_of(settings)});
  if (!settings.data.empty()) {
    for (const auto& item : model->named_parameters())
      read_raw(std::filesystem::path(settings.data) / item.key(), item.value());
  }
  model->to(device);
  return model;
}

Batch make_batch(const Settings& settings, int rank, at::Device device) {
  auto tokens = at::empty({settings.batch, settings.seq + 1}, at::kLong);
  if (settings.data.empty()) {
    tokens.random_(0, settings.vocab, at::detail::createCPUGenerator(1234 + static_cast<uint64_t>(rank)));
  } else {
    read_raw(std::filesystem::path(settings.data) / ("tokens." + std::to_string(rank)), tokens);
  }
  tokens = tokens.to(device);
  return {tokens.narrow(1, 0, settings.seq).contiguous(), tokens.narrow(1, 1, settings.seq).contiguous()};
}

// This process's share of the memory it has mapped.
double pss_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    double kib = 0;
    if (word == "Pss:" && file >> kib) return kib;
  }
  TORCH_CHECK(false, "no Pss in /proc/self/smaps_rollup");
}

void synchronize(at::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void reset_device_peak(at::Device device) {
  if (device.is_cuda()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

double device_peak(at::Device device) {
  if (!device.is_cuda()) return 0;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  constexpr auto kAllPools = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<double>(stats.allocated_bytes[kAllPools].peak);
}

// Forward and backward; `look` is called where most memory is in use.
template <class Model, class Look>
at::Tensor run(Model& model, const Batch& batch, Look look) {
  auto loss = model(batch.ids, batch.targets);
  look();
  loss.backward();
  look();
  return loss;
}

template <class M, class Look>
at::Tensor run(fsdp::Captured<M>& model, const Batch& batch, Look look) {
  auto loss = model(batch.ids, batch.targets);
  look();
  return loss;
}

template <class Model, class Look>
at::Tensor step(Model& model, torch::optim::Optimizer& optimizer, const Batch& batch, Look look) {
  auto loss = run(model, batch, look);
  optimizer.step();
  optimizer.zero_grad();
  return loss.detach();
}

template <class Model>
Figures train(Model& model, torch::optim::Optimizer& optimizer, const Batch& batch, const Settings& settings,
              double pss_before) {
  const auto device = batch.ids.device();
  Figures figures;
  std::vector<at::Tensor> losses;
  for (int number = 0; number < settings.warmup + settings.steps; ++number) {
    if (number == settings.warmup) reset_device_peak(device);
    const auto start = Clock::now();
    losses.push_back(step(model, optimizer, batch, [] {}));
    synchronize(device);
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
    if (number >= settings.warmup) figures.milliseconds.push_back(elapsed.count());
  }
  figures.pss_growth = pss_kib() - pss_before;
  figures.device_peak = device_peak(device);
  step(model, optimizer, batch,
       [&] { figures.pss_peak = std::max(figures.pss_peak, pss_kib() - pss_before); });
  for (const auto& loss : losses) figures.losses.push_back(loss.item<double>());
  return figures;
}

Figures sum_over_ranks(const fsdp::World& world, Figures figures) {
  auto comm = fsdp::Comm::create(world);
  const auto sum = [&](std::vector<double>& values) {
    auto total = at::tensor(values, at::kDouble).to(world.device());
    comm.all_reduce(total, fsdp::ReduceOp::sum, "figures").wait(std::chrono::minutes(1));
    total = total.cpu();
    values.assign(total.data_ptr<double>(), total.data_ptr<double>() + total.numel());
  };
  std::vector<double> memory{figures.pss_growth, figures.pss_peak, figures.device_peak};
  sum(figures.milliseconds);
  sum(figures.losses);
  sum(memory);
  figures.pss_growth = memory[0];
  figures.pss_peak = memory[1];
  figures.device_peak = memory[2];
  return figures;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

const char* name_of(const Settings& settings) {
  if (settings.plain) return "plain";
  if (settings.capture) return "captured";
  if (settings.offload && settings.bf16_moments) return "offload_bf16_moments";
  if (settings.offload) return settings.step_in_backward ? "offload_in_backward" : "offload";
  if (settings.recompute) return "recompute";
  if (settings.operators) return "operators";
  if (!settings.prefetch.empty()) return settings.prefetch.c_str();
  if (settings.deterministic) return "deterministic";
  return settings.reproducible ? "reproducible" : "fsdp";
}

void print_line(const Settings& settings, int64_t params, const Figures& total) {
  const auto mean = [&](std::vector<double> values) {
    for (double& value : values) value /= settings.ranks;
    return values;
  };
  const auto times = mean(total.milliseconds);
  const nlohmann::ordered_json line{{"bench", "step"},
                                    {"impl", name_of(settings)},
                                    {"device", settings.device},
                                    {"ranks", settings.ranks},
                                    {"params", params},
                                    {"step_ms", median(times)},
                                    {"best_ms", *std::min_element(times.begin(), times.end())},
                                    {"times_ms", times},
                                    {"losses", mean(total.losses)},
                                    {"pss_growth_kib", static_cast<int64_t>(total.pss_growth)},
                                    {"pss_peak_kib", static_cast<int64_t>(total.pss_peak)},
                                    {"peak_gib", total.device_peak / settings.ranks / (1 << 30)},
                                    {"version", fsdp::version()}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

int64_t count_params(const LlamaForCausalLM& model) {
  int64_t count = 0;
  for (const auto& parameter : model->parameters()) count += parameter.numel();
  return count;
}

Figures train_plain(LlamaForCausalLM model, const Batch& batch, const Settings& settings, double pss_before) {
  fsdp::AdamW optimizer(model->parameters(), fsdp::AdamWOptions(kLearningRate));
  return train(model, optimizer, batch, settings, pss_before);
}

Figures train_sharded(const fsdp::World& world, const LlamaForCausalLM& llama, const Batch& batch,
                      const Settings& settings, double pss_before) {
  fsdp::ShardOptions options;  // units: the blocks, the embedding, the head
  if (settings.bf16) options.precision = fsdp::bf16();
  options.offload.params = settings.offload;
  if (!settings.prefetch.empty()) {
    options.backward_prefetch = fsdp::parse_backward_prefetch(settings.prefetch);
    options.share_shards = false;
    if (settings.prefetch == "none") options.forward_prefetch = 0;
  }
  if (settings.reproducible) options.reproducible = fsdp::Reproducible{.microbatches = settings.ranks};
  auto model = fsdp::fully_shard(world, llama, options);
  const auto moments = settings.bf16_moments ? at::kBFloat16 : at::kFloat;
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(kLearningRate), moments);
  if (settings.step_in_backward) optimizer.step_in_backward(model);
  if (!settings.capture) return train(model, optimizer, batch, settings, pss_before);
  auto captured = fsdp::capture(model);
  return train(captured, optimizer, batch, settings, pss_before);
}

void run_rank(fsdp::World& world, const Settings& settings) {
  const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(settings.offload ? std::max(1, processors / settings.ranks) : 1);
  if (settings.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  fsdp::models::use_kernels(!settings.operators);
  const double pss_before = pss_kib();
  auto model = make_model(settings, world.device());
  const int64_t params = count_params(model);
  const auto batch = make_batch(settings, world.rank(), world.device());
  const auto mine = settings.plain ? train_plain(model, batch, settings, pss_before)
                                   : train_sharded(world, model, batch, settings, pss_before);
  const auto total = sum_over_ranks(world, mine);
  if (world.rank() == 0) print_line(settings, params, total);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Times training steps of a Llama; prints one JSON line.");
  app.add_option("--ranks", settings.ranks, "processes to start")->check(CLI::Range(1, 64));
  app.add_option("--dim", settings.dim, "hidden size, a multiple of 64");
  app.add_option("--layers", settings.layers, "decoder layers");
  app.add_option("--vocab", settings.vocab, "tokens there are");
  app.add_option("--batch", settings.batch, "sequences per rank");
  app.add_option("--seq", settings.seq, "tokens of a sequence");
  app.add_option("--steps", settings.steps, "timed steps")->check(CLI::PositiveNumber);
  app.add_option("--warmup", settings.warmup, "steps before them");
  app.add_option("--device", settings.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--data", settings.data, "folder of start weights and tokens, from torch_step.py --write");
  app.add_flag("--bf16", settings.bf16, "compute in bf16, reduce and keep weights in fp32");
  app.add_flag("--capture", settings.capture,
               "forward and backward as one CUDA graph, from the fourth step on");
  app.add_flag("--reproducible", settings.reproducible, "in reproducible mode, one microbatch per rank");
  app.add_flag("--deterministic", settings.deterministic, "with LibTorch's deterministic kernels only");
  app.add_flag("--offload", settings.offload, "keep parameters, gradients and moments in host memory");
  app.add_flag("--step-in-backward", settings.step_in_backward, "update them in backward")
      ->needs("--offload");
  app.add_flag("--bf16-moments", settings.bf16_moments, "AdamW keeps its moments in bf16");
  app.add_option("--prefetch", settings.prefetch, "backward_prefetch, with all-gathers that move bytes")
      ->check(CLI::IsMember({"pre", "post", "none"}));
  app.add_flag("--operators", settings.operators, "LibTorch's operators alone, no kernels of models/");
  app.add_flag("--recompute", settings.recompute, "compute the activations of layers again in backward");
  app.add_flag("--plain", settings.plain, "the model alone on one rank, not sharded, in fp32");
  CLI11_PARSE(app, argc, argv);
  try {
    TORCH_CHECK(!settings.plain || (settings.ranks == 1 && !settings.bf16),
                "--plain is for one rank, in fp32");
    fsdp::InitOptions options;
    options.device = at::Device(settings.device);
    fsdp::run_local(
        settings.ranks, [&](fsdp::World& world) { run_rank(world, settings); }, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
