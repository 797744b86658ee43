// A config file, read and checked against the schema: which values stand in which section.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "app/config/problem.h"
#include "app/config/schema.h"
#include "app/config/yaml_tree.h"

namespace fsdp::config {

// One value of a file, before merging.
struct Assignment {
  const Key* key = nullptr;
  Json value;
  std::string where;  // "config.yaml:12"
};

// The values of a section with a name: a stage, a preset or a model config.
struct NamedSection {
  std::string name;
  std::string where;
  std::vector<Assignment> values;
};

struct Document {
  std::string file;                // as messages call it
  std::vector<Assignment> values;  // at top level
  std::vector<NamedSection> stages, presets, model_configs;

  // Null if there is none.
  static const NamedSection* find(const std::vector<NamedSection>& sections, const std::string& name);
  static std::vector<std::string> names(const std::vector<NamedSection>& sections);
};

// Adds a problem for every key that is unknown, twice in its section or without a value, and every value that
// does not fit its key.
Document read_document(const std::string& text, const std::string& file, Problems& problems);

// The file's text. Adds a problem if it cannot be read, is not UTF-8 or is larger than a config file can be.
std::string read_config_file(const std::string& path, Problems& problems);

}  // namespace fsdp::config
