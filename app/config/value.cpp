#include "app/config/value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "app/config/near.h"

namespace fsdp::config {

namespace {

bool same_word(const std::string& first, const std::string& second) {
  return std::equal(first.begin(), first.end(), second.begin(), second.end(), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  });
}

std::optional<std::string> choice_of(const Key& key, const std::string& text) {
  for (const std::string& choice : key.choices)
    if (same_word(choice, text)) return choice;
  return std::nullopt;
}

std::optional<bool> flag_of(const std::string& text) {
  if (same_word(text, "true")) return true;
  if (same_word(text, "false")) return false;
  return std::nullopt;
}

// 010 is 8 to some readers of YAML and 10 to others.
bool has_leading_zero(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_number(const std::string& text) { return number_of<double>(text).has_value(); }

std::string number_text(double value) {
  if (std::fabs(value) < 1e6 && value == std::floor(value))
    return std::to_string(static_cast<int64_t>(value));
  char text[40];
  std::snprintf(text, sizeof text, "%.15g", value);
  return text;
}

std::string found(const Tree& tree) {
  switch (tree.kind) {
    case Tree::Kind::null:
      return "no value";
    case Tree::Kind::list:
      return "a list";
    case Tree::Kind::map:
      return "a section";
    case Tree::Kind::scalar:
      break;
  }
  constexpr size_t kMostShown = 60;
  const size_t end = std::min(tree.text.find('\n'), kMostShown);
  const std::string text = tree.text.size() > end ? tree.text.substr(0, end) + "..." : tree.text;
  if (!tree.quoted && (flag_of(tree.text) || is_number(tree.text))) return text;
  return (tree.quoted ? "the text '" : "'") + text + "'";
}

bool in_range(const Key& key, double value) {
  return std::isfinite(value) && (key.above_least ? value > key.least : value >= key.least) &&
         (key.below_most ? value < key.most : value <= key.most);
}

// `tree` is not a value of `key`.
Parsed refused(const Key& key, const Tree& tree, const std::string& advice = "") {
  Parsed parsed{.problem = "found " + found(tree) + ", expected " + expected(key) + advice};
  if (advice.empty() && tree.kind == Tree::Kind::scalar)
    parsed.problem += did_you_mean(tree.text, key.choices);
  return parsed;
}

// Advice for other ways to write true and false.
std::string flag_advice(const std::string& text) {
  for (const char* yes : {"yes", "on", "1"})
    if (same_word(text, yes)) return ", did you mean 'true'?";
  for (const char* no : {"no", "off", "0"})
    if (same_word(text, no)) return ", did you mean 'false'?";
  return did_you_mean(text, {"true", "false"});
}

Parsed parse_flag(const Key& key, const Tree& tree) {
  const std::optional<bool> value = tree.quoted ? std::nullopt : flag_of(tree.text);
  return value ? Parsed{.value = *value, .problem = {}} : refused(key, tree, flag_advice(tree.text));
}

Parsed parse_number(const Key& key, const Tree& tree) {
  const bool whole = key.type == Type::integer;
  if (const auto word = choice_of(key, tree.text)) return {.value = *word, .problem = {}};
  if (const auto flag = flag_of(tree.text); key.or_flag && !tree.quoted && flag)
    return {.value = *flag, .problem = {}};
  if (tree.quoted) return refused(key, tree, is_number(tree.text) ? "; a number stands without quotes" : "");
  const std::optional<int64_t> integer = number_of<int64_t>(tree.text);
  const std::optional<double> number = number_of<double>(tree.text);
  if (whole ? !integer : !number) return refused(key, tree);
  if (has_leading_zero(tree.text)) return refused(key, tree, "; a number begins with no 0 before its digits");
  if (!in_range(key, *number)) return refused(key, tree);
  return {.value = whole ? Json(*integer) : Json(*number), .problem = {}};
}

bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

Parsed parse_text(const Key& key, const Tree& tree) {
  if (!key.choices.empty()) {
    const auto choice = choice_of(key, tree.text);
    return choice ? Parsed{.value = *choice, .problem = {}} : refused(key, tree);
  }
  if (!tree.quoted && (flag_of(tree.text) || is_number(tree.text)))
    return refused(key, tree, "; if it is meant as a text, put it in quotes");
  if (tree.text.empty() || has_control_characters(tree.text))
    return {.value = {}, .problem = "found an empty text or one of several lines, expected a text"};
  return {.value = tree.text, .problem = {}};
}

Parsed parse_list(const Key& key, const Tree& tree) {
  Json list = Json::array();
  const std::vector<Tree> items = tree.kind == Tree::Kind::list ? tree.items : std::vector<Tree>{tree};
  for (const Tree& item : items) {
    if (item.kind != Tree::Kind::scalar)
      return {.value = {}, .problem = "found " + found(item) + " in the list, expected " + expected(key)};
    Parsed one = parse_text(key, item);
    if (!one.problem.empty()) return one;
    list.push_back(std::move(one.value));
  }
  if (list.empty() && key.can_be_unset())
    return {.value = {},
            .problem = "found an empty list, expected " + expected(key) + ". Remove the line for none"};
  return {.value = std::move(list), .problem = {}};
}

std::string bounds(const Key& key) {
  const bool least = std::isfinite(key.least), most = std::isfinite(key.most);
  if (least && most && !key.above_least && !key.below_most)
    return " from " + number_text(key.least) + " to " + number_text(key.most);
  std::string text;
  if (least) text += (key.above_least ? " above " : " of at least ") + number_text(key.least);
  if (most)
    text += (text.empty() ? "" : " and") +
            std::string(key.below_most    ? " below "
                        : key.above_least ? " up to "
                                          : " of at most ") +
            number_text(key.most);
  return text;
}

}  // namespace

Parsed parse_value(const Key& key, const Tree& tree) {
  if (tree.kind == Tree::Kind::null)
    return key.can_be_unset() ? Parsed{} : refused(key, tree, ". Remove the line for the default");
  if (key.type == Type::list)
    return tree.kind == Tree::Kind::map ? refused(key, tree) : parse_list(key, tree);
  if (tree.kind != Tree::Kind::scalar) return refused(key, tree);
  switch (key.type) {
    case Type::flag:
      return parse_flag(key, tree);
    case Type::integer:
    case Type::number:
      return parse_number(key, tree);
    default:
      return parse_text(key, tree);
  }
}

Parsed parse_typed(const Key& key, const std::string& text) {
  if (key.can_be_unset() && (text == "null" || text == "~")) return {};
  if (key.type == Type::list && text.starts_with("[")) {
    Problems problems;
    const Tree tree = parse_yaml(text, "", problems);
    if (!problems.empty()) return {.value = {}, .problem = "found '" + text + "', expected " + expected(key)};
    return parse_value(key, tree);
  }
  Tree tree;
  tree.kind = text.empty() ? Tree::Kind::null : Tree::Kind::scalar;
  tree.text = text;
  tree.quoted = (key.type == Type::text && key.choices.empty()) || key.type == Type::list;
  return text.empty() ? refused(key, tree) : parse_value(key, tree);
}

std::string expected(const Key& key) {
  std::vector<std::string> ways;
  const auto quoted = [&] {
    for (const std::string& choice : key.choices) ways.push_back("'" + choice + "'");
  };
  switch (key.type) {
    case Type::flag:
      return "true or false";
    case Type::list:
      return "a text or a list of texts";
    case Type::number:
      return "a number" + bounds(key);
    case Type::integer:
      ways.push_back("an integer" + bounds(key));
      if (key.or_flag) ways.insert(ways.end(), {"true", "false"});
      quoted();
      return one_of(ways);
    case Type::text:
      break;
  }
  quoted();
  return ways.empty() ? "a text" : one_of(ways);
}

std::string shown(const Json& value) {
  if (value.is_null()) return "not set";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return number_text(value.get<double>());
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : ", ") + shown(item);
  return "[" + text + "]";
}

}  // namespace fsdp::config
