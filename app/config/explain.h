// The keys of the configuration, explained: for people, for the docs and for editors.
#pragma once

#include <optional>
#include <string>

#include "app/config/schema.h"

namespace fsdp::config {

// All keys, those of a section, or one key with all there is to say. A key of a model config may be asked for
// as model_config.x or model_config_<name>.x. Unset: there is no such key or section.
std::optional<std::string> explain(const std::string& key_or_section);

// The message for a name that explain() does not know.
std::string unknown_key(const std::string& name);

// Tables of all keys for docs/configuration.md, in Markdown.
std::string explain_in_markdown();

// A JSON Schema (draft 2020-12) of config files. It knows keys, types and ranges, not contradictions.
Json json_schema();

}  // namespace fsdp::config
