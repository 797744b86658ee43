#include "trainer/same_run.h"

#include <ATen/ops/from_blob.h>
#include <fsdp/error.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "app/config/schema.h"
#include "models/lora.h"
#include "trainer/data/error.h"

namespace fsdp::train {

namespace {

// Keys whose values a rank may have for itself.
bool is_own(const config::Key& key) {
  return key.reader == config::Reader::front || key.path.starts_with("logging.") ||
         key.path.starts_with("wandb.");
}

// Rank 0's text, on every rank.
std::string text_of_first(const World& world, std::string text) {
  at::Tensor size = torch::full({1}, static_cast<int64_t>(text.size()), torch::kLong).to(world.device());
  world.comm().broadcast(size, 0, "the length of what rank 0 was started with").wait();
  at::Tensor bytes = torch::zeros({size.item<int64_t>()}, torch::kByte);
  if (world.rank() == 0 && !text.empty())
    bytes.copy_(at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte));
  bytes = bytes.to(world.device());
  if (bytes.numel() > 0) world.comm().broadcast(bytes, 0, "what rank 0 was started with").wait();
  bytes = bytes.cpu();
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()), static_cast<size_t>(bytes.numel())};
}

// Throws on all ranks if any rank found a difference.
void end_together(const World& world, const std::string& difference) {
  at::Tensor differs = torch::zeros({world.size()}, torch::kDouble);  // [ranks]
  if (!difference.empty()) differs[world.rank()] = 1.0;
  differs = world.sum(differs.to(world.device())).cpu();
  if (differs.sum().item<double>() == 0) return;
  if (!difference.empty()) throw data::DataError(difference);
  throw OtherRankDiffers(differs.argmax().item<int>());
}

}  // namespace

OtherRankDiffers::OtherRankDiffers(int rank)
    : DataError("rank " + std::to_string(rank) +
                " was started with another configuration or other data; its message says which"),
      rank_(rank) {}

void check_same_settings(const World& world, const config::Settings& settings) {
  if (world.size() == 1) return;
  nlohmann::json ours = nlohmann::json::object();
  for (const config::Key& key : config::schema())
    if (!is_own(key)) ours[key.path] = settings.peek(key.path);
  const auto first = nlohmann::json::parse(text_of_first(world, ours.dump()));
  std::string difference;
  for (const auto& [key, value] : ours.items())
    if (difference.empty() && first.value(key, nlohmann::json()) != value)
      difference = settings.origin(key).text + ": " + key + ": found " + value.dump() + " on rank " +
                   std::to_string(world.rank()) + ", but rank 0 has " +
                   first.value(key, nlohmann::json()).dump() +
                   ". Start every machine with the same configuration";
  end_together(world, difference);
}

void check_same_data(const World& world, const std::string& data) {
  if (world.size() == 1) return;
  const std::string first = text_of_first(world, data);
  end_together(world, first == data
                          ? ""
                          : "data.train: found " + data + " on rank " + std::to_string(world.rank()) +
                                ", but rank 0 has " + first + ". Every machine needs the same files");
}

void check_same_model(const std::string& saved, const std::string& wanted, const std::string& checkpoint) {
  const auto theirs = nlohmann::json::parse(saved, nullptr, false);
  const auto ours = nlohmann::json::parse(wanted, nullptr, false);
  if (!theirs.is_object() || !ours.is_object()) return;
  for (const auto& [key, value] : ours.items()) {
    const bool is_dropout =
        key.find("pdrop") != std::string::npos || key.find("dropout") != std::string::npos;
    if (is_dropout || !theirs.contains(key) || theirs.at(key) == value || key == "lora") continue;
    throw CheckpointError(
        checkpoint + " was saved with " + key + " " + theirs.at(key).dump() + "; the configuration says " +
        value.dump() + ". A run keeps its model; training.init_from starts another run with these weights");
  }
}

double mean_square_of_base(const World& world, const ShardedModel& model) {
  const at::NoGradGuard no_grad;
  at::Tensor sums = torch::zeros({2}, torch::kDouble).to(world.device());
  for (const auto& item : model.named_parameters()) {
    if (models::is_adapter(item.key())) continue;
    const at::Tensor values = item.value().detach().to(world.device(), torch::kDouble);
    sums[0] += values.square().sum();
    sums[1] += values.numel();
  }
  sums = world.sum(sums).cpu();
  return sums[1].item<double>() > 0 ? (sums[0] / sums[1]).item<double>() : 0.0;
}

}  // namespace fsdp::train
