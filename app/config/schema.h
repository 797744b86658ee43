// The keys of the configuration of `fsdp train`, as data: parser, help, JSON schema, docs and tests read
// them.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::config {

using Json = nlohmann::ordered_json;

enum class Type : uint8_t { flag, integer, number, text, list };

// The process that acts on a key: the `fsdp` command, the worker that trains, or both.
enum class Reader : uint8_t { front, worker, both };

struct Key {
  std::string path;  // "distributed.fsdp.cpu_offload"
  Type type = Type::text;
  Json value = {};  // the default; null: not set
  // Bounds of an integer or a number.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  // `least` itself is refused
  bool below_most = false;   // `most` itself is refused
  // The only texts allowed, in the spelling that is kept; case does not matter in a file. For an integer:
  // words that may stand instead of it.
  std::vector<std::string> choices = {};
  bool or_flag = false;   // an integer that may also be true or false
  bool required = false;  // must be in every section that has this key
  Reader reader = Reader::worker;
  std::string help;
  std::string unset = {};  // what holds where it is not set
  // The key has an effect only if the key `needs` has one of `needed` values; empty: always.
  std::string needs = {};
  std::vector<std::string> needed = {};

  // True if it may be left without a value.
  bool can_be_unset() const { return value.is_null() && !required; }
  // "distributed.fsdp", and "cpu_offload". A key at top level has the section "".
  std::string section() const;
  std::string name() const;
};

// All keys, in the order of the docs. Keys of a model config have the section `model_config` here, in a file
// model_config_<name>.
const std::vector<Key>& schema();

// The key with this path; null if there is none.
const Key* find_key(const std::string& path);

// The keys directly or deeper in `section` ("distributed", "distributed.fsdp").
std::vector<const Key*> keys_below(const std::string& section);

// Sections that a stage may hold: `distributed`, `training`, ... They may also stand at top level.
const std::vector<std::string>& stage_sections();
// Sections that stand at top level only: `logging`, `wandb`.
const std::vector<std::string>& top_sections();

// One sentence on a section, for help and docs.
std::string section_help(const std::string& section);

inline constexpr const char* kStages = "training_stages";
inline constexpr const char* kPresets = "distributed_examples";
inline constexpr const char* kModelConfigPrefix = "model_config_";
inline constexpr const char* kModelConfig = "model_config";

// The keys of each part, which schema() puts together.
std::vector<Key> distributed_keys();
std::vector<Key> model_keys();
std::vector<Key> training_keys();
std::vector<Key> data_keys();
std::vector<Key> watching_keys();

}  // namespace fsdp::config
