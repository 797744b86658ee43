// Settings as a config file.
#include <algorithm>
#include <regex>

#include "app/config/settings.h"

namespace fsdp::config {

namespace {

constexpr size_t kCommentColumn = 60;

class Writer {
 public:
  explicit Writer(const Settings& settings) : settings_(settings) {}

  std::string text() {
    text_ = "# The configuration of a run, as resolved: every value, and where it came from.\n";
    key(*find_key("mode"), 0);
    line(0, std::string(kStages) + ":");
    line(1, quoted(settings_.stage()) + ":");
    for (const std::string& section : stage_sections()) this->section(section, section, 2);
    if (!settings_.peek("model.config").is_null())
      section(kModelConfig, settings_.peek("model.config").get<std::string>(), 0);
    for (const std::string& section : top_sections()) this->section(section, section, 0);
    return std::move(text_);
  }

 private:
  // Plain words stand for themselves; anything else as in JSON, which is YAML too.
  static std::string quoted(const std::string& text) {
    static const std::regex word("[A-Za-z][A-Za-z0-9_./-]*");
    static const std::regex other_type("true|false|yes|no|on|off|y|n|null|inf.*|nan.*", std::regex::icase);
    return std::regex_match(text, word) && !std::regex_match(text, other_type) ? text : Json(text).dump();
  }

  // YAML 1.1 takes 1e-08 for a text: a number with an exponent has a dot there.
  static std::string with_dot(std::string number) {
    const size_t exponent = number.find('e');
    if (exponent != std::string::npos && number.find('.') == std::string::npos) number.insert(exponent, ".0");
    return number;
  }

  static std::string value_text(const Json& value) {
    if (value.is_string()) return quoted(value.get<std::string>());
    return value.is_number_float() ? with_dot(value.dump()) : value.dump();
  }

  void line(size_t depth, const std::string& text) { text_ += std::string(2 * depth, ' ') + text + "\n"; }

  void key(const Key& key, size_t depth) {
    const Json& value = settings_.peek(key.path);
    if (value.is_null()) return;
    std::string text = std::string(2 * depth, ' ') + key.name() + ": " + value_text(value);
    text.resize(std::max(text.size() + 2, kCommentColumn), ' ');
    text_ += text + "# " + settings_.origin(key.path).text + "\n";
  }

  bool is_empty(const std::string& section) const {
    const std::vector<const Key*> keys = keys_below(section);
    return std::all_of(keys.begin(), keys.end(),
                       [this](const Key* key) { return settings_.peek(key->path).is_null(); });
  }

  void section(const std::string& schema_section, const std::string& name, size_t depth) {
    if (is_empty(schema_section)) return;
    line(depth, quoted(name) + ":");
    std::string nested;
    for (const Key* one : keys_below(schema_section)) {
      if (one->section() == schema_section) {
        key(*one, depth + 1);
      } else if (one->section() != nested) {
        nested = one->section();
        section(nested, nested.substr(schema_section.size() + 1), depth + 1);
      }
    }
  }

  const Settings& settings_;
  std::string text_;
};

}  // namespace

std::string Settings::to_yaml() const { return Writer(*this).text(); }

}  // namespace fsdp::config
