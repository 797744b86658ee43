#include "app/config/document.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "app/config/near.h"
#include "app/config/value.h"

namespace fsdp::config {

namespace {

// The name of a stage or a preset: it may become a folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  });
}

class Reading {
 public:
  Reading(const std::string& file, Problems& problems) : file_(file), problems_(problems) {}

  Document document(const Tree& tree) {
    made_.file = file_;
    if (tree.kind == Tree::Kind::null) return std::move(made_);
    if (!is_section(tree, "", tree.line)) return std::move(made_);
    check_twice(tree, "");
    for (const Tree::Member& member : tree.members) top(member);
    return std::move(made_);
  }

 private:
  std::string where(int line) const { return file_ + ":" + std::to_string(line); }

  void top(const Tree::Member& member) {
    const std::string& name = member.key;
    if (name == kStages)
      named(member, made_.stages,
            [this](const Tree& tree, const std::string& path, auto& values) { stage(tree, path, values); });
    else if (name == kPresets)
      named(member, made_.presets, [this](const Tree& tree, const std::string& path, auto& values) {
        section(tree, "distributed", path, values);
      });
    else if (name.starts_with(kModelConfigPrefix) && is_plain_name(name) && !is_other(name))
      model_config(member);
    else if (is_any_section(name))
      section(member.value, name, name, made_.values, member.line);
    else if (const Key* key = find_key(name); key != nullptr && key->section().empty())
      value(*key, member, name, made_.values);
    else
      unknown(member, name, top_names(), "");
  }

  static bool is_any_section(const std::string& name) {
    return std::count(stage_sections().begin(), stage_sections().end(), name) > 0 ||
           std::count(top_sections().begin(), top_sections().end(), name) > 0;
  }
  static bool is_other(const std::string& name) { return name == kModelConfigPrefix; }

  static std::vector<std::string> top_names() {
    std::vector<std::string> names{kStages, kPresets, kModelConfigPrefix + std::string("NAME"), "mode"};
    for (const auto* more : {&stage_sections(), &top_sections()})
      names.insert(names.end(), more->begin(), more->end());
    return names;
  }

  // training_stages or distributed_examples: sections with names.
  template <typename Read>
  void named(const Tree::Member& member, std::vector<NamedSection>& sections, const Read& read) {
    if (!is_section(member.value, member.key, member.line)) return;
    check_twice(member.value, member.key);
    for (const Tree::Member& one : member.value.members) {
      const std::string path = member.key + "." + one.key;
      if (!is_plain_name(one.key))
        problems_.add(where(one.line), path,
                      "found a name with other characters than letters, digits, _, - and .");
      if (!is_section(one.value, path, one.line)) continue;
      NamedSection made{one.key, where(one.line), {}};
      read(one.value, path, made.values);
      sections.push_back(std::move(made));
    }
  }

  void stage(const Tree& tree, const std::string& path, std::vector<Assignment>& values) {
    check_twice(tree, path);
    for (const Tree::Member& member : tree.members) {
      const auto& sections = stage_sections();
      const std::string below = path + "." + member.key;
      if (std::count(sections.begin(), sections.end(), member.key) > 0)
        section(member.value, member.key, below, values, member.line);
      else if (std::count(top_sections().begin(), top_sections().end(), member.key) > 0 ||
               member.key.starts_with(kModelConfigPrefix))
        problems_.add(where(member.line), below,
                      "found a section of the whole file in a stage, expected it at top level");
      else
        unknown(member, below, sections, "");
    }
  }

  void model_config(const Tree::Member& member) {
    if (!is_section(member.value, member.key, member.line)) return;
    NamedSection made{member.key, where(member.line), {}};
    section(member.value, kModelConfig, member.key, made.values);
    std::set<std::string> present;
    for (const Tree::Member& one : member.value.members) present.insert(one.key);
    std::string missing;
    for (const Key* key : keys_below(kModelConfig))
      if (key->required && present.count(key->name()) == 0)
        missing += (missing.empty() ? "" : ", ") + key->name();
    if (!missing.empty())
      problems_.add(made.where, member.key, "found no " + missing + ", which a model config needs");
    made_.model_configs.push_back(std::move(made));
  }

  // The keys of `schema_section`, which stand in the file at `path`.
  void section(const Tree& tree, const std::string& schema_section, const std::string& path,
               std::vector<Assignment>& values, int line = 0) {
    if (!is_section(tree, path, line == 0 ? tree.line : line)) return;
    check_twice(tree, path);
    for (const Tree::Member& member : tree.members) {
      const std::string key_path = schema_section + "." + member.key;
      const std::string below = path + "." + member.key;
      if (const Key* key = find_key(key_path))
        value(*key, member, below, values);
      else if (!keys_below(key_path).empty())
        section(member.value, key_path, below, values, member.line);
      else
        unknown(member, below, names_in(schema_section), schema_section);
    }
  }

  void value(const Key& key, const Tree::Member& member, const std::string& path,
             std::vector<Assignment>& values) {
    Parsed parsed = parse_value(key, member.value);
    if (!parsed.problem.empty())
      problems_.add(where(member.line), path, parsed.problem);
    else
      values.push_back({&key, std::move(parsed.value), where(member.line)});
  }

  bool is_section(const Tree& tree, const std::string& path, int line) {
    if (tree.kind == Tree::Kind::map) return true;
    problems_.add(where(line), path,
                  tree.kind == Tree::Kind::null
                      ? "found no keys below it. Indent its keys, or remove the line"
                      : std::string("found ") +
                            (tree.kind == Tree::Kind::list ? "a list" : "'" + tree.text + "'") +
                            ", expected keys below it, as in `" + (path.empty() ? "training" : path) +
                            ":` and then `  key: value`");
    return false;
  }

  void check_twice(const Tree& tree, const std::string& path) {
    std::map<std::string, int> lines;
    for (const Tree::Member& member : tree.members) {
      const auto [first, is_new] = lines.emplace(member.key, member.line);
      if (!is_new)
        problems_.add(where(member.line), path.empty() ? member.key : path + "." + member.key,
                      "found a second time in its section, first in line " + std::to_string(first->second) +
                          ". Remove one of them");
    }
  }

  // Names of the keys directly in the section, and of its sections.
  static std::vector<std::string> names_in(const std::string& schema_section) {
    std::vector<std::string> names;
    for (const Key* key : keys_below(schema_section)) {
      std::string rest = key->path.substr(schema_section.size() + 1);
      rest = rest.substr(0, rest.find('.'));
      if (names.empty() || names.back() != rest) names.push_back(rest);
    }
    return names;
  }

  void unknown(const Tree::Member& member, const std::string& path, const std::vector<std::string>& known,
               const std::string& schema_section) {
    if (member.key == "<<")
      return problems_.add(
          where(member.line), path,
          "found a merge key, which is not supported. Write the keys out, or put them at top level");
    const std::string owner = schema_section.empty() ? "there" : "of `" + schema_section + "`";
    problems_.add(
        where(member.line), path,
        "found an unknown key, expected one " + owner + ": " + one_of(known) + advice(member.key, known));
  }

  // Advice for an unknown key: the section that has a key of this name, or else the most similar name.
  static std::string advice(const std::string& name, const std::vector<std::string>& known) {
    if (const Key* key = find_key(name))
      return ". Write `" + key->section() + ":`, and below it `" + key->name() + ":`";
    for (const Key& key : schema())
      if (key.name() == name) return ", did you mean '" + key.path + "'?";
    if (const std::string near = did_you_mean(name, known); !near.empty()) return near;
    for (const Key& key : schema())
      if (nearest(name, {key.name()}) == key.name()) return ", did you mean '" + key.path + "'?";
    return "";
  }

  const std::string& file_;
  Problems& problems_;
  Document made_;
};

}  // namespace

const NamedSection* Document::find(const std::vector<NamedSection>& sections, const std::string& name) {
  const auto found = std::find_if(sections.begin(), sections.end(),
                                  [&](const NamedSection& section) { return section.name == name; });
  return found == sections.end() ? nullptr : &*found;
}

std::vector<std::string> Document::names(const std::vector<NamedSection>& sections) {
  std::vector<std::string> names;
  for (const NamedSection& section : sections) names.push_back(section.name);
  return names;
}

Document read_document(const std::string& text, const std::string& file, Problems& problems) {
  const size_t before = problems.size();
  const Tree tree = parse_yaml(text, file, problems);
  return Reading(file, problems).document(problems.size() > before ? Tree() : tree);
}

}  // namespace fsdp::config
