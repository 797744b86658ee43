#include "trainer/plan_run.h"

#include <fsdp/fsdp.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "trainer/language_model.h"
#include "trainer/run_settings.h"
#include "trainer/watch/text.h"

namespace fsdp::train {

namespace {

using config::Settings;

struct Row {
  std::string name, value, remark = {};
};

std::string bytes(int64_t count) { return watch::bytes_text(static_cast<double>(count)); }

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string table(const std::vector<Row>& rows) {
  size_t names = 0, values = 0;
  for (const Row& row : rows) {
    names = std::max(names, row.name.size());
    values = std::max(values, row.value.size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = "  " + padded(row.name, names + 2) + padded(row.value, values + 2) + row.remark;
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

// Bytes of optimizer state per byte of parameters that the rank keeps.
double optimizer_share(const Settings& settings) {
  if (settings.text("optimizer.name") == "sgd") return settings.number("optimizer.momentum") > 0 ? 1 : 0;
  const bool narrow = settings.text("optimizer.moments") == "bf16";
  return narrow && settings.text("training.precision") != "bf16-true" ? 1 : 2;
}

struct Trained {
  int64_t parameters = 0, of = 0;
  double share() const { return static_cast<double>(parameters) / static_cast<double>(of); }
};

Trained trained_parameters(const torch::nn::Module& module) {
  Trained counts;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : module.parameters()) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;  // a tied one has two names
    counts.of += parameter.numel();
    if (parameter.requires_grad()) counts.parameters += parameter.numel();
  }
  return counts;
}

// Slots that are gathered at a time; all of them if there is no limit.
size_t slots(const ShardOptions& options, size_t units) {
  return options.limit_all_gathers > 0 ? static_cast<size_t>(options.limit_all_gathers) : units;
}

std::vector<Row> memory_rows(const Settings& settings, const ShardOptions& options, const ShardingPlan& plan,
                             const Trained& trained) {
  const size_t gathered = slots(options, plan.units.size());
  const int64_t shards = plan.shard_bytes();
  std::vector<Row> rows;
  int64_t sum = 0;
  const auto add = [&](const std::string& name, int64_t count, const std::string& remark) {
    if (count == 0) return;
    rows.push_back({name, bytes(count), remark});
    sum += count;
  };
  add("parameters", shards, "this rank's shards");
  add("gradients", plan.gradient_bytes(), "shards of their sums over ranks");
  const double state = optimizer_share(settings) * trained.share() * static_cast<double>(shards);
  add("optimizer state", static_cast<int64_t>(state), settings.text("optimizer.name"));
  if (settings.number("training.ema_decay") > 0)
    add("moving average", plan.parameters() * 4 / plan.ranks_per_row, "of the weights, fp32");
  add("gathered units", plan.slot_bytes(gathered),
      "the largest " + std::to_string(std::min(gathered, plan.units.size())) + " that follow each other");
  add("gradients on their way", plan.buffer_bytes(2), "before they are reduced");
  rows.push_back({"sum", bytes(sum), "activations come on top"});
  return rows;
}

// Units of equal size that follow each other are one row.
std::vector<Row> unit_rows(const ShardingPlan& plan) {
  std::vector<Row> rows;
  for (size_t i = 0; i < plan.units.size();) {
    const UnitPlan& unit = plan.units[i];
    size_t end = i + 1;
    while (end < plan.units.size() && plan.units[end].parameters == unit.parameters &&
           plan.units[end].shard_bytes == unit.shard_bytes)
      ++end;
    const std::string first = unit.name.empty() ? "(the rest)" : unit.name;
    const std::string name =
        end == i + 1 ? first
                     : first + " to " + plan.units[end - 1].name + ", " + std::to_string(end - i) + " units";
    rows.push_back({name, watch::grouped(unit.parameters) + " parameters",
                    (end == i + 1 ? "" : "each, ") + bytes(unit.shard_bytes) + " on each rank"});
    i = end;
  }
  return rows;
}

std::string rank_text(const Settings& settings, const ShardingPlan& plan, bool gpu) {
  std::string text = std::to_string(settings.ranks()) + (gpu ? " GPU ranks" : " CPU ranks");
  const int64_t nodes = settings.integer("distributed.num_nodes");
  if (nodes > 1) text += " on " + std::to_string(nodes) + " nodes";
  text += ", " + (settings.text("distributed.strategy") == "ddp"
                      ? std::string("NO_SHARD")
                      : settings.text("distributed.fsdp.sharding_strategy"));
  if (plan.ranks_per_row < settings.ranks())
    text += ", " + std::to_string(plan.ranks_per_row) + " ranks hold one replica";
  return text;
}

}  // namespace

std::string plan_run(const Settings& settings, bool gpu) {
  const ModelSpec spec = model_spec(settings);
  if (spec.type == "script")
    return "model   " + spec.script + ": TorchScript; its units are found when the run starts\n";
  const config::BatchPlan batch = batch_plan(settings, static_cast<int>(settings.ranks()));
  const ShardOptions options = shard_options(settings, batch);
  const PlannedRanks ranks{.ranks = static_cast<int>(settings.ranks()),
                           .ranks_per_host = static_cast<int>(settings.ranks()) /
                                             static_cast<int>(settings.integer("distributed.num_nodes")),
                           .cpu = !gpu};
  const std::shared_ptr<torch::nn::Module> module = make_meta_module(spec);
  const ShardingPlan plan = plan_sharding(*module, ranks, options);
  const Trained trained = trained_parameters(*module);
  std::string text = "model   " + spec.name + ": " + watch::grouped(plan.parameters()) + " parameters in " +
                     std::to_string(plan.units.size()) + " units, " + settings.text("training.precision") +
                     "\n";
  if (spec.lora.rank > 0)
    text += "trained " + watch::grouped(trained.parameters) + " of them, in adapters of rank " +
            std::to_string(spec.lora.rank) + "\n";
  text += "ranks   " + rank_text(settings, plan, gpu) + "\n";
  text += "batch   " + std::to_string(batch.global_batch_size) +
          " sequences a step = " + std::to_string(batch.batch_size) + " x " +
          std::to_string(batch.accumulation) + " microbatches x " + std::to_string(settings.ranks()) +
          " ranks\n";
  text += "\nBytes on each rank, by kind:\n" + table(memory_rows(settings, options, plan, trained));
  return text + "\nUnits:\n" + table(unit_rows(plan));
}

}  // namespace fsdp::train
