// The schema as JSON Schema.
#include <cmath>

#include "app/config/explain.h"
#include "app/config/value.h"

namespace fsdp::config {

namespace {

constexpr const char* kPlainName = "^[A-Za-z0-9_.-]+$";

Json bounded(const char* type, const Key& key) {
  const auto number = [&](double value) {
    return key.type == Type::integer ? Json(static_cast<int64_t>(value)) : Json(value);
  };
  Json schema{{"type", type}};
  if (std::isfinite(key.least)) schema[key.above_least ? "exclusiveMinimum" : "minimum"] = number(key.least);
  if (std::isfinite(key.most)) schema[key.below_most ? "exclusiveMaximum" : "maximum"] = number(key.most);
  return schema;
}

// The choices; those that look like a number may stand without quotes.
Json choices(const Key& key) {
  Json allowed = Json::array();
  for (const std::string& choice : key.choices) {
    allowed.push_back(choice);
    if (!choice.empty() && choice.find_first_not_of("0123456789") == std::string::npos)
      allowed.push_back(std::stoll(choice));
  }
  return {{"enum", allowed}};
}

Json text_schema() { return {{"type", "string"}, {"minLength", 1}}; }

Json value_schema(const Key& key) {
  std::vector<Json> ways;
  switch (key.type) {
    case Type::flag:
      ways.push_back({{"type", "boolean"}});
      break;
    case Type::number:
      ways.push_back(bounded("number", key));
      break;
    case Type::integer:
      ways.push_back(bounded("integer", key));
      break;
    case Type::text:
      if (key.choices.empty()) ways.push_back(text_schema());
      break;
    case Type::list:
      ways.push_back(text_schema());
      ways.push_back({{"type", "array"}, {"items", text_schema()}});
      if (key.can_be_unset()) ways.back()["minItems"] = 1;
      break;
  }
  if (key.or_flag) ways.push_back({{"type", "boolean"}});
  if (!key.choices.empty()) ways.push_back(choices(key));
  if (key.can_be_unset()) ways.push_back({{"type", "null"}});
  Json schema = ways.size() == 1 ? ways.front() : Json{{"anyOf", ways}};
  schema["description"] = key.help;
  if (!key.value.is_null()) schema["default"] = key.value;
  return schema;
}

Json object(const std::string& description) {
  Json schema{{"type", "object"}, {"additionalProperties", false}};
  if (!description.empty()) schema["description"] = description;
  schema["properties"] = Json::object();
  return schema;
}

Json section_schema(const std::string& section) {
  Json schema = object(section_help(section));
  Json required = Json::array();
  for (const Key* key : keys_below(section)) {
    if (key->section() == section) {
      schema["properties"][key->name()] = value_schema(*key);
      if (key->required) required.push_back(key->name());
      continue;
    }
    const std::string name = key->section().substr(section.size() + 1);
    if (!schema["properties"].contains(name)) schema["properties"][name] = section_schema(key->section());
  }
  if (!required.empty()) schema["required"] = required;
  return schema;
}

Json named(const std::string& description, Json value) {
  Json schema = object(description);
  schema["patternProperties"] = {{kPlainName, std::move(value)}};
  return schema;
}

}  // namespace

Json json_schema() {
  Json stage = object("A stage: its values win over those at top level");
  for (const std::string& section : stage_sections()) stage["properties"][section] = section_schema(section);
  Json schema{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
              {"title", "Configuration of fsdp train"},
              {"type", "object"},
              {"additionalProperties", false},
              {"properties", Json::object()}};
  Json& properties = schema["properties"];
  properties["mode"] = value_schema(*find_key("mode"));
  properties[kStages] = named("Stages, which are trained one after the other", std::move(stage));
  properties[kPresets] =
      named("Presets for `distributed`, chosen by --fsdp-config", section_schema("distributed"));
  for (const auto* sections : {&stage_sections(), &top_sections()})
    for (const std::string& section : *sections) properties[section] = section_schema(section);
  schema["patternProperties"] = {
      {std::string("^") + kModelConfigPrefix + "[A-Za-z0-9_.-]+$", section_schema(kModelConfig)}};
  return schema;
}

}  // namespace fsdp::config
