// One value of a key: from YAML or from the command line, checked against the schema.
#pragma once

#include <string>
#include <vector>

#include "app/config/schema.h"
#include "app/config/yaml_tree.h"

namespace fsdp::config {

struct Parsed {
  Json value = {};
  std::string problem =
      {};  // empty: `value` holds. Else what was found, what is expected and the nearest word
};

// The value of `key` that `tree` holds. Choices come back in the schema's spelling, a single text of a list
// as a list of one.
Parsed parse_value(const Key& key, const Tree& tree);

// The same for text that was typed: `4`, `true`, `[a, b]`, `null`. A text needs no quotes.
Parsed parse_typed(const Key& key, const std::string& text);

// "an integer from 1 to 1024, or 'auto'".
std::string expected(const Key& key);

// As a person would type it: text without quotes, "not set" for null.
std::string shown(const Json& value);

}  // namespace fsdp::config
