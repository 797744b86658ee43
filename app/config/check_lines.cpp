#include <optional>
#include <sstream>

#include "app/config/yaml_tree.h"

namespace fsdp::config {

namespace {

constexpr int kMostDepth = 64;

// Reads line by line what yaml-cpp reads as one stream, so that a problem is reported where it was made.
class LineCheck {
 public:
  LineCheck(const std::string& file, Problems& problems) : file_(file), problems_(problems) {}

  void line(const std::string& text) {
    ++number_;
    size_t begin = text.find_first_not_of(' ');
    if (begin == std::string::npos || text[begin] == '\r') return;
    if (block_text_ && begin > *block_text_) return;
    block_text_.reset();
    if (text[begin] == '#') return;
    if (depth_ > 0) return scan(text, begin);
    if (text.starts_with("---") || text.starts_with("...") || text[0] == '%') return;
    if (text[begin] == '\t') return tab(text, begin);
    while (text[begin] == '-' && (begin + 1 == text.size() || text[begin + 1] == ' ')) {
      begin = item(text, begin);
      if (begin == std::string::npos) return;
    }
    entry(text, begin);
  }

  void end() {
    if (depth_ > 0)
      report(opened_line_, opened_key_, "found a bracket that is never closed, expected ']' or '}'");
  }

 private:
  struct Level {
    size_t indent;
    bool list;
  };

  void report(int line, const std::string& key, const std::string& text) {
    problems_.add(file_ + ":" + std::to_string(line), key, text);
  }

  void tab(const std::string& text, size_t begin) {
    const size_t word = text.find_first_not_of(" \t", begin);
    if (word == std::string::npos || text[word] == '#' || text[word] == '\r') return;
    report(number_, key_of(text, word), "found a tab in the indentation, expected spaces");
    opens_ = true;  // nothing is known about the level of what follows
    unknown_level_ = true;
  }

  // A list item at `begin`. Returns where its content begins; npos if it has none on this line.
  size_t item(const std::string& text, size_t begin) {
    if (!(opens_ && !levels_.empty() && levels_.back().indent == begin && !levels_.back().list))
      place(begin, true, "");
    opens_ = true;
    const size_t content = text.find_first_not_of(' ', begin + 1);
    if (content == std::string::npos || text[content] == '#') return std::string::npos;
    if (key_of(text, content).empty()) {
      opens_ = false;
      scan(text, content);
      return std::string::npos;
    }
    return content;
  }

  // A `key: value` at `begin`.
  void entry(const std::string& text, size_t begin) {
    if (text[begin] == '{' || text[begin] == '[' || text[begin] == '?') return scan(text, begin);
    const size_t colon = colon_of(text, begin);
    const std::string key = key_of(text, begin);
    if (colon == std::string::npos) return no_colon(text, begin);
    place(begin, false, key);
    size_t value = text.find_first_not_of(" \t", colon + 1);
    while (value != std::string::npos && (text[value] == '&' || text[value] == '!'))  // anchor, tag
      value = text.find_first_not_of(' ', std::min(text.size(), text.find(' ', value)));
    opens_ = value == std::string::npos || text[value] == '#' || text[value] == '\r';
    if (opens_) return;
    if (text[value] == '|' || text[value] == '>') {
      block_text_ = begin;
      return;
    }
    opened_key_ = key;
    scan(text, value);
  }

  void no_colon(const std::string& text, size_t begin) {
    size_t end = text.find_first_of(": \t\r#", begin);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(begin, end - begin);
    if (end < text.size() && text[end] == ':')
      report(number_, word, "found no space after the colon, expected `" + word + ": value`");
    else
      report(number_, word, "found neither `key: value` nor `- item`; a value stands on the line of its key");
  }

  // Finds the level of a line that is indented by `indent`.
  void place(size_t indent, bool list, const std::string& key) {
    if (unknown_level_) {
      unknown_level_ = false;
      if (levels_.empty() || indent > levels_.back().indent) return levels_.push_back({indent, list});
    }
    if (levels_.empty() || (opens_ && indent > levels_.back().indent)) {
      levels_.push_back({indent, list});
      return;
    }
    if (indent > levels_.back().indent)
      return report(number_, key,
                    "found an indentation of " + spaces(indent) + ", expected " +
                        spaces(levels_.back().indent) + ": the line above has a value and can hold nothing");
    size_t level = levels_.size();
    while (level > 0 && levels_[level - 1].indent > indent) --level;
    if (level == 0 || levels_[level - 1].indent != indent) return misplaced(indent, key);
    levels_.resize(level);
  }

  void misplaced(size_t indent, const std::string& key) {
    std::string known;
    for (const Level& level : levels_) known += (known.empty() ? "" : " or ") + std::to_string(level.indent);
    report(number_, key,
           "found an indentation of " + spaces(indent) + ", expected that of a level above: " + known +
               " spaces");
  }

  static std::string spaces(size_t count) {
    return std::to_string(count) + (count == 1 ? " space" : " spaces");
  }

  // The colon that ends the key at `begin`; npos if there is none.
  static size_t colon_of(const std::string& text, size_t begin) {
    size_t at = begin;
    if (text[at] == '"' || text[at] == '\'') {
      at = text.find(text[at], at + 1);
      if (at == std::string::npos) return at;
    }
    for (; at < text.size(); ++at) {
      if (text[at] == '#' && at > 0 && text[at - 1] == ' ') return std::string::npos;
      if (text[at] == ':' && (at + 1 == text.size() || text.find_first_of(" \t\r", at + 1) == at + 1))
        return at;
    }
    return std::string::npos;
  }

  static std::string key_of(const std::string& text, size_t begin) {
    const size_t colon = colon_of(text, begin);
    if (colon == std::string::npos) return "";
    const size_t end = text.find_last_not_of(" \t\"'", colon - 1);
    const size_t first = text.find_first_not_of("\"'", begin);
    return end == std::string::npos || first > end ? "" : text.substr(first, end + 1 - first);
  }

  // Follows quotes and brackets of a value from `at` to the end of the line.
  void scan(const std::string& text, size_t at) {
    char before = ' ';
    for (; at < text.size(); ++at) {
      const char c = text[at];
      const bool starts = before == ' ' || before == '[' || before == '{' || before == ',' || before == ':';
      if (c == '#' && before == ' ') return;
      if ((c == '"' || c == '\'') && starts) {
        at = end_of_quote(text, at);
        if (at == std::string::npos)
          return report(number_, key_of(text, text.find_first_not_of(" -")),
                        std::string("found a quote that is not closed, expected ") + c + " on the same line");
      } else if ((c == '[' || c == '{') && (starts || depth_ > 0)) {
        if (depth_++ == 0) opened_line_ = number_;
        if (depth_ == kMostDepth)
          report(number_, opened_key_, "found brackets nested without end, expected a config file");
      } else if ((c == ']' || c == '}') && depth_ > 0) {
        --depth_;
      }
      if (at < text.size()) before = text[at];
    }
  }

  static size_t end_of_quote(const std::string& text, size_t at) {
    const char quote = text[at];
    for (++at; at < text.size(); ++at) {
      if (quote == '"' && text[at] == '\\') {
        ++at;
      } else if (text[at] == quote) {
        if (quote == '"' || at + 1 == text.size() || text[at + 1] != quote) return at;
        ++at;  // '' is a quote in quotes
      }
    }
    return std::string::npos;
  }

  const std::string& file_;
  Problems& problems_;
  int number_ = 0;
  std::vector<Level> levels_;
  bool opens_ = true;           // the entry before has no value yet: deeper lines may follow
  bool unknown_level_ = false;  // a line before could not be placed
  int depth_ = 0;               // open brackets
  int opened_line_ = 0;
  std::string opened_key_;
  std::optional<size_t> block_text_;  // indentation of the key whose text follows (| or >)
};

}  // namespace

void check_lines(const std::string& text, const std::string& file, Problems& problems) {
  LineCheck check(file, problems);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) check.line(line);
  check.end();
}

}  // namespace fsdp::config
