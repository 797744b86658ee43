#include "trainer/describe_run.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fsdp/fsdp.h>
#include <torch/version.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "trainer/watch/text.h"

namespace fsdp::train {

namespace {

// Peak of dense matrix products in FLOP/s.
struct Peak {
  const char* name;
  double half, single;  // 16-bit types, fp32
};
constexpr Peak kPeaks[] = {
    {"B200", 2.25e15, 7.5e13}, {"H200", 9.89e14, 6.7e13},  {"H100 PCIe", 7.56e14, 5.1e13},
    {"H100", 9.89e14, 6.7e13}, {"A100", 3.12e14, 1.95e13}, {"L40S", 3.62e14, 9.15e13},
    {"L4", 1.21e14, 3.03e13},  {"V100", 1.25e14, 1.57e13}, {"T4", 6.5e13, 8.1e12}};

// The name of the first NVIDIA GPU, as the driver has it; "" if there is none.
std::string gpu_name() {
  std::error_code ignored;
  for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    std::ifstream file(gpu.path() / "information");
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("Model:")) return line.substr(line.find_first_not_of(" \t", 6));
  }
  return "";
}

std::string device_name(const World& world) {
  if (world.device().is_cpu()) return "cpu";
  const std::string name = gpu_name();
  return name.empty() ? world.device().str() : name;
}

watch::BytesByKind kinds_of(const MemoryStats& memory) {
  const watch::BytesByKind all = {{"shards", memory.parameter_bytes},
                                  {"gradient shards", memory.gradient_bytes},
                                  {"optimizer", memory.optimizer_bytes},
                                  {"gathered units", memory.arena_bytes + memory.overflow_bytes},
                                  {"gradients on their way", memory.buffer_bytes},
                                  {"partial sums", memory.partial_sum_bytes},
                                  {"host memory", memory.host_bytes}};
  watch::BytesByKind there;
  for (const auto& kind : all)
    if (kind.second > 0) there.push_back(kind);
  return there;
}

// "tiny_gpt2" of the section model_config_tiny_gpt2.
std::string short_name(const std::string& name) {
  constexpr std::string_view kSection = "model_config_";
  return name.starts_with(kSection) ? name.substr(kSection.size()) : name;
}

}  // namespace

watch::StartRecord describe_start(const World& world, const config::Settings& settings, const ModelSpec& spec,
                                  const TrainModel& model, const std::string& folder, int64_t steps) {
  watch::StartRecord start{.run = folder,
                           .ranks = world.size(),
                           .nodes = static_cast<int64_t>(world.hosts().size()),
                           .backend = world.comm().backend_name(),
                           .device = device_name(world),
                           .model = short_name(spec.name),
                           .parameters = model.model.num_parameters(),
                           .units = static_cast<int64_t>(model.model.unit_counts().size()),
                           .steps = steps,
                           .bytes_per_rank = kinds_of(model.model.memory_stats())};
  for (const char* key :
       {"distributed.strategy", "distributed.fsdp.sharding_strategy", "training.precision",
        "training.batch_size", "training.gradient_accumulation_steps", "training.global_batch_size",
        "optimizer.name", "optimizer.lr", "schedule.name", "training.seed"}) {
    const config::Json& value = settings.peek(key);
    start.config.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  start.versions = {{"fsdp.cpp", version()}, {"LibTorch", TORCH_VERSION}};
  return start;
}

std::vector<std::string> start_lines(const watch::StartRecord& start, const World& world,
                                     const config::Settings& settings, const BatchNumbers& numbers,
                                     const std::string& data) {
  const bool cpu = world.device().is_cpu();
  std::string ranks =
      std::to_string(start.ranks) + (cpu ? " CPU rank" : " GPU rank") + (start.ranks > 1 ? "s" : "");
  if (start.nodes > 1) ranks += " on " + std::to_string(start.nodes) + " hosts";
  int64_t bytes = 0;
  for (const auto& [kind, size] : start.bytes_per_rank) bytes += size;
  const bool plain = world.source().starts_with("RANK");  // a launcher that says no more about itself
  return {"model   " + start.model + ": " + watch::grouped(start.parameters) + " parameters in " +
              std::to_string(start.units) + " units, precision " + settings.text("training.precision"),
          "ranks   " + ranks + " (" + start.backend + (plain ? "" : ", " + world.source()) +
              "), each holds " + watch::bytes_text(static_cast<double>(bytes)) + " of shards",
          "data    " + data,
          "batch   " + std::to_string(numbers.global_batch_size) +
              " sequences a step = " + std::to_string(numbers.batch_size) + " x " +
              std::to_string(numbers.accumulation) + " microbatches x " + std::to_string(start.ranks) +
              " ranks; " + watch::grouped(start.steps) + " steps",
          "run     " + (start.run.empty() ? std::string("nothing is kept") : start.run)};
}

std::string describe_data(const Corpus& corpus, const TokenData& data, int64_t length) {
  std::string text = corpus.description + ": " +
                     watch::grouped(static_cast<int64_t>(corpus.train->samples())) + " sequences of " +
                     std::to_string(length) + ", " + watch::grouped(data.steps_per_epoch()) +
                     " steps an epoch";
  if (data.dropped_per_epoch() > 0)
    text += "; the last " + std::to_string(data.dropped_per_epoch()) + " sequences are dropped";
  return text;
}

std::string describe_evaluation(int64_t step, double loss, const std::optional<double>& best, bool averaged) {
  const std::string text = "step " + std::to_string(step) + "  eval loss " +
                           (averaged ? "of the averaged weights " : "") + watch::loss_text(loss);
  if (!best) return text;
  return text + (loss < *best ? ", the best so far" : "; the best so far is " + watch::loss_text(*best));
}

watch::MemoryRecord describe_memory(int64_t step, const ShardedModel& model,
                                    const torch::optim::Optimizer& optimizer) {
  return {.step = step, .ranks = {{.rank = 0, .kinds = kinds_of(model.memory_stats(optimizer))}}};
}

int64_t peak_memory(const World& world, const ShardedModel& model, const torch::optim::Optimizer& optimizer) {
  const c10::Device device = world.device();
  auto* allocator =
      device.is_cpu() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator != nullptr) {
    const auto whole = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator->getDeviceStats(device.index()).allocated_bytes[whole].peak;
  }
  const MemoryStats memory = model.memory_stats(optimizer);
  return memory.step_peak_bytes + memory.optimizer_bytes;
}

watch::UnitsRecord describe_units(int64_t step, int64_t steps, const ShardedModel& model) {
  watch::UnitsRecord record{.step = step, .steps = steps};
  for (const UnitCounts& unit : model.unit_counts())
    record.units.push_back({.name = unit.name, .gathers = unit.gathers, .reduces = unit.reduces});
  return record;
}

std::optional<double> model_flops_utilization(const World& world, const config::Settings& settings,
                                              const ModelSpec& spec, const ShardedModel& model,
                                              double tokens_per_second) {
  if (world.device().is_cpu() || spec.hidden_size == 0) return std::nullopt;
  static const std::string name = device_name(world);
  const bool single = settings.text("training.precision") == "32";
  const int64_t length =
      settings.has("data.sequence_length") ? settings.integer("data.sequence_length") : spec.context_length;
  for (const Peak& peak : kPeaks)
    if (name.find(peak.name) != std::string::npos)
      return flops_per_token(spec, model.num_parameters(), length) * tokens_per_second /
             (world.size() * (single ? peak.single : peak.half));
  return std::nullopt;
}

}  // namespace fsdp::train
