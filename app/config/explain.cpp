#include "app/config/explain.h"

#include <algorithm>

#include "app/config/near.h"
#include "app/config/value.h"

namespace fsdp::config {

namespace {

constexpr size_t kNameColumn = 46;

std::vector<std::string> sections() {
  std::vector<std::string> names;
  for (const Key& key : schema())
    if (std::find(names.begin(), names.end(), key.section()) == names.end()) names.push_back(key.section());
  return names;
}

std::string default_text(const Key& key) {
  if (key.required) return "none: it must be set";
  if (!key.value.is_null()) return shown(key.value);
  return "not set" + (key.unset.empty() ? "" : ": " + key.unset);
}

std::string condition(const Key& key) {
  return key.needs.empty() ? "" : "only if " + key.needs + " is " + one_of(key.needed);
}

std::string explain_key(const Key& key) {
  std::string text = key.path + "\n  " + key.help + ".\n  value:   " + expected(key) +
                     "\n  default: " + default_text(key) + "\n";
  if (!condition(key).empty()) text += "  used:    " + condition(key) + "\n";
  if (key.path != "mode" && !key.path.starts_with(kModelConfig))
    text += "  typed:   --set " + key.path + "=VALUE, or FSDP_SET_" + [&] {
      std::string name = key.path;
      for (size_t at = name.find('.'); at != std::string::npos; at = name.find('.', at))
        name.replace(at, 1, "__");
      return name;
    }() + "=VALUE\n";
  return text;
}

std::string explain_section(const std::string& section) {
  const std::string help = section_help(section);
  std::string text = help.empty() ? "" : section + ": " + help + "\n";
  for (const Key& key : schema()) {
    if (key.section() != section) continue;
    std::string line = "  " + key.path;
    line.resize(std::max(line.size() + 2, kNameColumn), ' ');
    text += line + key.help + " [" + default_text(key) + "]\n";
  }
  return text;
}

std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2))
    text.insert(at, "\\");
  return text;
}

}  // namespace

std::optional<std::string> explain(const std::string& key_or_section) {
  std::string name = key_or_section;
  if (name.starts_with(kModelConfigPrefix)) {
    const size_t dot = name.rfind('.');
    name = kModelConfig + (dot == std::string::npos ? "" : name.substr(dot));
  }
  if (const Key* key = find_key(name)) return explain_key(*key);
  std::string text;
  for (const std::string& section : sections())
    if (name.empty() || section == name || section.starts_with(name + "."))
      text += (text.empty() ? "" : "\n") + explain_section(section);
  return text.empty() ? std::nullopt : std::optional(text);
}

std::string unknown_key(const std::string& name) {
  std::vector<std::string> known = sections();
  for (const Key& key : schema()) {
    known.push_back(key.path);
    if (key.name() == name) return "found no key '" + name + "', did you mean '" + key.path + "'?";
  }
  const std::string near = did_you_mean(name, known);
  return "found no key or section '" + name + "'" +
         (near.empty() ? ". `fsdp config --explain` lists them" : near);
}

std::string explain_in_markdown() {
  std::string text;
  for (const std::string& section : sections()) {
    const std::string title = section.empty()           ? "At top level"
                              : section == kModelConfig ? "`model_config_<name>`"
                                                        : "`" + section + "`";
    text += "### " + title + "\n\n";
    if (!section.empty()) text += section_help(section) + ".\n\n";
    text += "| key | value | default | meaning |\n|---|---|---|---|\n";
    for (const Key& key : schema()) {
      if (key.section() != section) continue;
      const std::string used = condition(key).empty() ? "" : ". Used " + condition(key);
      text += "| `" + key.name() + "` | " + cell(expected(key)) + " | " + cell(default_text(key)) + " | " +
              cell(key.help + used) + " |\n";
    }
    text += "\n";
  }
  text.pop_back();
  return text;
}

}  // namespace fsdp::config
