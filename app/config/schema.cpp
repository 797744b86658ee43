#include "app/config/schema.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace fsdp::config {

namespace {

std::vector<Key> all_keys() {
  std::vector<Key> keys;
  keys.push_back({.path = "mode",
                  .value = "production",
                  .choices = {"production", "smoke"},
                  .reader = Reader::front,
                  .help = "smoke: a few steps on tiny data, nothing is kept"});
  for (auto part : {distributed_keys, training_keys, model_keys, data_keys, watching_keys}) {
    std::vector<Key> more = part();
    std::move(more.begin(), more.end(), std::back_inserter(keys));
  }
  return keys;
}

const std::map<std::string, std::string>& section_helps() {
  static const std::map<std::string, std::string> helps{
      {"distributed",
       "Ranks, and what is sharded among them. A preset of distributed_examples has the same keys"},
      {"distributed.fsdp", "How parameters, gradients and optimizer state are sharded"},
      {"training", "Batches, precision and length of the training"},
      {"model", "The model: a named config, a TorchScript file or a Hugging Face folder"},
      {"model_config", "A named model, written as model_config_<name> at top level"},
      {"lora", "Low-rank adapters: only they are trained and saved"},
      {"data", "What is trained on"},
      {"optimizer", "The optimizer"},
      {"schedule", "The learning rate over the steps"},
      {"checkpoint", "When checkpoints are saved, and which are kept"},
      {"eval", "Evaluation on the validation data"},
      {"logging", "What is logged, at top level only"},
      {"wandb", "Weights & Biases, at top level only"}};
  return helps;
}

}  // namespace

std::string Key::section() const {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string Key::name() const {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

const std::vector<Key>& schema() {
  static const std::vector<Key> keys = all_keys();
  return keys;
}

const Key* find_key(const std::string& path) {
  static const std::map<std::string, const Key*> index = [] {
    std::map<std::string, const Key*> made;
    for (const Key& key : schema()) made.emplace(key.path, &key);
    return made;
  }();
  const auto found = index.find(path);
  return found == index.end() ? nullptr : found->second;
}

std::vector<const Key*> keys_below(const std::string& section) {
  std::vector<const Key*> keys;
  for (const Key& key : schema())
    if (key.path.starts_with(section + ".")) keys.push_back(&key);
  return keys;
}

const std::vector<std::string>& stage_sections() {
  static const std::vector<std::string> sections{"distributed", "training", "model",      "lora", "data",
                                                 "optimizer",   "schedule", "checkpoint", "eval"};
  return sections;
}

const std::vector<std::string>& top_sections() {
  static const std::vector<std::string> sections{"logging", "wandb"};
  return sections;
}

std::string section_help(const std::string& section) {
  const auto found = section_helps().find(section);
  return found == section_helps().end() ? "" : found->second;
}

}  // namespace fsdp::config
