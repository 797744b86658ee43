#include "bench/claims/small_runs.h"

#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/claims/gather_figures.h"
#include "models/mlp.h"

namespace bench {

namespace {

using fsdp::models::Activation;
using fsdp::models::MLP;

constexpr double kRate = 0.05;
constexpr int64_t kRows = 64;  // of the whole batch
constexpr uint64_t kFirstSeed = 1000;
constexpr int kMicrobatches = 8;

struct Rows {
  at::Tensor x, y;
  Rows part(int index, int parts) const {
    const int64_t rows = x.size(0) / parts;
    return {x.narrow(0, index * rows, rows), y.narrow(0, index * rows, rows)};
  }
};

// The same values on every rank, from a generator of their own.
Rows draw_rows(int64_t rows, int64_t inputs, uint64_t seed, c10::Device device) {
  const auto x = torch::randn({rows, inputs}, at::make_generator<at::CPUGeneratorImpl>(seed));
  const auto y = (x.narrow(1, 0, 4).sum(1, /*keepdim=*/true) / 2).tanh() / 2;
  return {x.to(device), y.to(device)};
}

MLP small_mlp(c10::Device device) {
  torch::manual_seed(3);
  MLP net(std::vector<int64_t>{16, 64, 64, 1}, Activation::tanh);
  net->to(device);
  return net;
}

at::Tensor flat(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const auto& parameter : module.parameters()) parts.push_back(parameter.detach().reshape({-1}));
  return at::cat(parts).cpu();
}

// Of a plain loop over the whole batch, on one rank.
at::Tensor plain_parameters(const Rows& rows, int steps, c10::Device device) {
  MLP net = small_mlp(device);
  torch::optim::SGD optimizer(net->parameters(), kRate);
  for (int step = 0; step < steps; ++step) {
    torch::mse_loss(net->forward(rows.x), rows.y).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return flat(*net);
}

// FNV-1a over the bits.
std::string hash_text(const at::Tensor& values) {
  uint64_t hash = 14695981039346656037ULL;
  const auto* bytes = static_cast<const unsigned char*>(values.const_data_ptr());
  for (size_t i = 0; i < values.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ULL;
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

// One backward per part of the batch that is this rank's.
std::vector<Rows> my_parts(const Rows& rows, const fsdp::World& world, const std::string& data) {
  if (data == "same") return {rows};
  if (data == "split") return {rows.part(world.rank(), world.size())};
  std::vector<Rows> parts;
  for (int i = world.rank(); i < kMicrobatches; i += world.size())
    parts.push_back(rows.part(i, kMicrobatches));
  return parts;
}

void compare_rank(fsdp::World& world, const EqualSettings& settings) {
  at::set_num_threads(1);
  const Rows rows = draw_rows(kRows, 16, 5, world.device());
  MLP net = small_mlp(world.device());
  fsdp::ShardOptions options;
  if (settings.data == "reproducible")
    options.reproducible = fsdp::Reproducible{.microbatches = kMicrobatches};
  auto model = fsdp::fully_shard(world, net, options);
  torch::optim::SGD optimizer(model.parameters(), kRate);
  const auto parts = my_parts(rows, world, settings.data);
  for (int step = 0; step < settings.steps; ++step) {
    for (const Rows& part : parts) torch::mse_loss(model(part.x), part.y).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto whole = model.full_params();
  if (world.rank() != 0) return;
  const at::Tensor found = flat(*net), plain = plain_parameters(rows, settings.steps, world.device());
  const nlohmann::ordered_json line{{"bench", "claims"},
                                    {"program", "equal"},
                                    {"device", settings.device},
                                    {"ranks", settings.ranks},
                                    {"data", settings.data},
                                    {"params", found.numel()},
                                    {"max_diff", (found - plain).abs().max().item<double>()},
                                    {"hash", hash_text(found)},
                                    {"version", fsdp::version()}};
  std::printf("%s\n", line.dump().c_str());
}

void learn_rank(fsdp::World& world, const LearnSettings& settings) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  MLP net(std::vector<int64_t>{16, 512, 512, 1}, Activation::gelu);
  fsdp::ShardOptions options{.strategy = fsdp::parse_strategy(settings.strategy)};
  auto model = fsdp::fully_shard(world, net, options);
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(3e-3));
  std::vector<double> losses;
  fsdp::MemoryStats stats;
  for (int step = 0; step < settings.steps; ++step) {
    const auto seed = kFirstSeed + static_cast<uint64_t>(step * world.size() + world.rank());
    const Rows rows = draw_rows(kRows, 16, seed, world.device());
    const auto loss = torch::mse_loss(model(rows.x), rows.y);
    loss.backward();
    optimizer.step();
    stats = model.memory_stats(optimizer);
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  const auto state = stats.parameter_bytes + stats.gradient_bytes + stats.optimizer_bytes;
  const at::Tensor mean = gather_figures(world, losses).mean(0);
  const at::Tensor most = gather_figures(world, {static_cast<double>(state)}).amax(0);
  if (world.rank() != 0) return;
  const nlohmann::ordered_json line{{"bench", "claims"},
                                    {"program", "learn"},
                                    {"device", settings.device},
                                    {"ranks", settings.ranks},
                                    {"strategy", settings.strategy},
                                    {"params", model.num_parameters()},
                                    {"steps", settings.steps},
                                    {"first_loss", mean[0].item<double>()},
                                    {"last_loss", mean[-1].item<double>()},
                                    {"state_bytes", static_cast<int64_t>(most.item<double>())},
                                    {"version", fsdp::version()}};
  std::printf("%s\n", line.dump().c_str());
}

fsdp::InitOptions on_device(const std::string& device) {
  fsdp::InitOptions options;
  options.device = c10::Device(device);
  return options;
}

}  // namespace

void compare_with_plain_loop(const EqualSettings& settings) {
  fsdp::run_local(
      settings.ranks, [&](fsdp::World& world) { compare_rank(world, settings); }, on_device(settings.device));
}

void learn(const LearnSettings& settings) {
  fsdp::run_local(
      settings.ranks, [&](fsdp::World& world) { learn_rank(world, settings); }, on_device(settings.device));
}

}  // namespace bench
