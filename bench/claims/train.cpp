#include "bench/claims/train.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/fsdp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "bench/claims/gather_figures.h"
#include "bench/claims/memory_use.h"
#include "models/llama.h"

namespace bench {

namespace {

using Clock = std::chrono::steady_clock;
using fsdp::models::LlamaForCausalLM;
using Model = fsdp::Sharded<fsdp::models::LlamaForCausalLMImpl>;

constexpr double kLearningRate = 1e-4;

struct Batch {
  at::Tensor ids, targets;  // [batch, seq]
};

// Bytes that a rank holds after the optimizer's step, gradients included.
struct State {
  int64_t parameters = 0, gradients = 0, moments = 0, model_peak = 0;
};

// What a rank measured.
struct Figures {
  std::vector<double> milliseconds;  // of every timed step
  std::vector<double> losses;        // of every step
  State state;
  std::map<std::string, int64_t> comm_bytes;  // of the last step, by operation: full buffers
  int64_t setup_peak = 0;                     // until the model was sharded
  int64_t allocated_peak = 0;                 // in the last step
  int64_t resident_peak = 0;                  // in all steps
};

fsdp::models::LlamaConfig config_of(const TrainSettings& settings) {
  fsdp::models::LlamaConfig config{.vocab_size = settings.vocab,
                                   .hidden_size = settings.dim,
                                   .intermediate_size = settings.inner,
                                   .num_hidden_layers = settings.layers,
                                   .num_attention_heads = settings.heads,
                                   .max_position_embeddings = settings.seq};
  if (settings.recompute > 0)
    config.run_block = fsdp::recompute_blocks(fsdp::every_block(settings.recompute));
  return config;
}

// The number in "model.layers.7"; none for other units.
std::optional<int> layer_of(const std::string& unit) {
  constexpr std::string_view kLayers = "model.layers.";
  return unit.starts_with(kLayers) ? std::optional(std::stoi(unit.substr(kLayers.size()))) : std::nullopt;
}

fsdp::ShardOptions options_of(const TrainSettings& settings) {
  fsdp::ShardOptions options;
  options.wrap = fsdp::by_type<fsdp::models::LlamaDecoderLayerImpl, torch::nn::EmbeddingImpl>();
  options.strategy = fsdp::parse_strategy(settings.strategy);
  if (settings.bf16) options.precision = fsdp::bf16();
  if (!settings.prefetch.empty()) {
    options.backward_prefetch = fsdp::parse_backward_prefetch(settings.prefetch);
    options.share_shards = false;
    if (settings.prefetch == "none") options.forward_prefetch = 0;
  }
  if (settings.keep_every > 0)
    options.unit = [every = settings.keep_every](const std::string& unit) {
      const auto layer = layer_of(unit);
      return layer && *layer % every == 0 ? fsdp::UnitOptions{.reshard_after_forward = false}
                                          : fsdp::UnitOptions{};
    };
  return options;
}

Batch make_batch(const TrainSettings& settings, const fsdp::World& world) {
  auto tokens = at::empty({settings.batch, settings.seq + 1}, at::kLong);
  const auto seed = 1234 + static_cast<uint64_t>(world.rank());
  tokens.random_(0, settings.vocab, at::detail::createCPUGenerator(seed));
  tokens = tokens.to(world.device());
  return {tokens.narrow(1, 0, settings.seq).contiguous(), tokens.narrow(1, 1, settings.seq).contiguous()};
}

// Memory that libraries take at their first use is not the model's.
void warm_libraries(const fsdp::World& world, const TrainSettings& settings) {
  TrainSettings small = settings;
  small.dim = 16 * settings.heads;
  small.layers = 1;
  small.inner = 0;
  small.vocab = 64;
  LlamaForCausalLM model(config_of(small));
  model->to(world.device());
  const Batch batch = make_batch(small, world);
  model->forward(batch.ids, batch.targets).backward();
}

void synchronize(c10::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

std::map<std::string, int64_t> comm_bytes(const Model& model) {
  std::map<std::string, int64_t> bytes;
  for (const fsdp::OpStats& one : model.comm_stats()) bytes[one.op] = one.bytes;
  return bytes;
}

State state_of(const Model& model, const torch::optim::Optimizer& optimizer) {
  const fsdp::MemoryStats stats = model.memory_stats(optimizer);
  return {.parameters = stats.parameter_bytes,
          .gradients = stats.gradient_bytes,
          .moments = stats.optimizer_bytes,
          .model_peak = stats.step_peak_bytes + stats.optimizer_bytes};
}

Figures run_steps(Model& model, const Batch& batch, const TrainSettings& settings, MemoryUse* memory) {
  const auto sample = [&] {
    if (memory != nullptr) memory->sample();
  };
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(kLearningRate));
  Figures figures;
  std::map<std::string, int64_t> before;
  const int count = settings.warmup + settings.steps;
  for (int number = 0; number < count; ++number) {
    if (memory != nullptr && number + 1 == count) {
      figures.resident_peak = memory->resident_peak();
      memory->restart();
      model.on_transition([&](const fsdp::UnitTransition&) { memory->sample(); });
    }
    before = comm_bytes(model);
    const auto start = Clock::now();
    auto loss = model(batch.ids, batch.targets);
    sample();
    loss.backward();
    sample();
    optimizer.step();
    sample();
    figures.state = state_of(model, optimizer);
    optimizer.zero_grad();
    figures.losses.push_back(loss.item<double>());
    synchronize(batch.ids.device());
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
    if (number >= settings.warmup) figures.milliseconds.push_back(elapsed.count());
  }
  figures.comm_bytes = comm_bytes(model);
  for (const auto& [op, bytes] : before) figures.comm_bytes[op] -= bytes;
  model.on_transition({});
  if (memory != nullptr) {
    figures.allocated_peak = memory->allocated_peak();
    figures.resident_peak = std::max(figures.resident_peak, memory->resident_peak());
  }
  return figures;
}

nlohmann::ordered_json settings_json(const TrainSettings& settings) {
  return {{"bench", "claims"},
          {"program", "train"},
          {"device", settings.device},
          {"ranks", settings.ranks},
          {"strategy", settings.strategy},
          {"prefetch", settings.prefetch},
          {"recompute", settings.recompute},
          {"keep_every", settings.keep_every},
          {"bf16", settings.bf16},
          {"dim", settings.dim},
          {"layers", settings.layers}};
}

std::vector<double> mean_over_ranks(const fsdp::World& world, const std::vector<double>& figures) {
  const at::Tensor mean = gather_figures(world, figures).mean(0);
  return {mean.data_ptr<double>(), mean.data_ptr<double>() + mean.numel()};
}

// Times and losses are means over the ranks, bytes those of the rank that has most.
void print_line(const fsdp::World& world, const TrainSettings& settings, int64_t params,
                const Figures& figures) {
  nlohmann::ordered_json line = settings_json(settings);
  line["params"] = params;
  line["losses"] = mean_over_ranks(world, figures.losses);
  if (!settings.memory) line["times_ms"] = mean_over_ranks(world, figures.milliseconds);
  std::vector<std::pair<const char*, int64_t>> bytes{{"parameter_bytes", figures.state.parameters},
                                                     {"gradient_bytes", figures.state.gradients},
                                                     {"moment_bytes", figures.state.moments},
                                                     {"model_peak_bytes", figures.state.model_peak}};
  if (settings.memory) {
    bytes.emplace_back("setup_peak_bytes", figures.setup_peak);
    bytes.emplace_back("allocated_peak_bytes", figures.allocated_peak);
    bytes.emplace_back("resident_peak_bytes", figures.resident_peak);
  }
  std::vector<double> mine;
  for (const auto& [name, value] : bytes) mine.push_back(static_cast<double>(value));
  const at::Tensor most = gather_figures(world, mine).amax(0);
  for (size_t i = 0; i < bytes.size(); ++i)
    line[bytes[i].first] = static_cast<int64_t>(most.data_ptr<double>()[i]);
  line["comm_bytes"] = figures.comm_bytes;
  line["version"] = fsdp::version();
  if (world.rank() == 0) std::printf("%s\n", line.dump().c_str());
}

void train_rank(fsdp::World& world, const TrainSettings& settings) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  std::optional<MemoryUse> memory;
  if (settings.memory) {
    warm_libraries(world, settings);
    memory.emplace(world.device());
  }
  auto llama = fsdp::on_meta([&] { return LlamaForCausalLM(config_of(settings)); });
  auto model = fsdp::fully_shard(world, llama, options_of(settings));
  const Batch batch = make_batch(settings, world);
  int64_t setup_peak = 0;
  if (memory) {
    memory->sample();
    setup_peak = std::max(memory->allocated_peak(), memory->resident_peak());
    memory->restart();
  }
  Figures figures = run_steps(model, batch, settings, memory ? &*memory : nullptr);
  figures.setup_peak = setup_peak;
  print_line(world, settings, model.num_parameters(), figures);
}

}  // namespace

void train(const TrainSettings& settings) {
  fsdp::InitOptions options;
  options.device = c10::Device(settings.device);
  options.keep_host_memory = !settings.memory;
  fsdp::run_local(
      settings.ranks, [&](fsdp::World& world) { train_rank(world, settings); }, options);
}

}  // namespace bench
