#include "app/config/yaml_tree.h"

#include <yaml-cpp/yaml.h>

#include <sstream>

namespace fsdp::config {

namespace {

constexpr const char* kByteOrderMark = "\xef\xbb\xbf";
constexpr int kMostDepth = 16;
constexpr int kMostNodes = 100000;  // aliases of aliases grow without bound

std::string at_line(const std::string& file, int line) { return file + ":" + std::to_string(line); }

// Copies yaml-cpp's nodes. Aliases may form a circle: depth and size are bounded.
class TreeMaker {
 public:
  TreeMaker(const std::string& file, Problems& problems) : file_(file), problems_(problems) {}

  Tree make(const YAML::Node& node, int line, int depth) {
    Tree tree;
    tree.line = node.IsNull() ? line : node.Mark().line + 1;
    if (failed_ || node.IsNull()) return tree;
    if (depth > kMostDepth || ++nodes_ > kMostNodes) {
      failed_ = true;
      problems_.add(at_line(file_, line), "",
                    "found values nested or repeated by aliases without end, expected a config file");
      return tree;
    }
    if (node.IsScalar()) {
      tree.kind = Tree::Kind::scalar;
      tree.text = node.Scalar();
      tree.quoted = node.Tag() == "!";
    } else if (node.IsSequence()) {
      tree.kind = Tree::Kind::list;
      for (const YAML::Node& item : node) tree.items.push_back(make(item, tree.line, depth + 1));
    } else {
      tree.kind = Tree::Kind::map;
      for (const auto& member : node) add_member(tree, member.first, member.second, depth);
    }
    return tree;
  }

 private:
  void add_member(Tree& tree, const YAML::Node& key, const YAML::Node& value, int depth) {
    const int line = key.IsNull() ? tree.line : key.Mark().line + 1;
    if (!key.IsScalar())
      problems_.add(at_line(file_, line), "", "found a key that is not a word, expected `key: value`");
    else
      tree.members.push_back({key.Scalar(), line, make(value, line, depth + 1)});
  }

  const std::string& file_;
  Problems& problems_;
  int nodes_ = 0;
  bool failed_ = false;
};

// The key that the line with this number begins with; empty if there is none.
std::string key_on_line(const std::string& text, int number) {
  std::istringstream lines(text);
  std::string line;
  for (int i = 0; i < number; ++i) std::getline(lines, line);
  const size_t begin = line.find_first_not_of(" \t-");
  const size_t end = line.find(':');
  if (begin == std::string::npos || end == std::string::npos || end <= begin) return "";
  return line.substr(begin, line.find_last_not_of(" \t\"'", end - 1) + 1 - begin);
}

}  // namespace

int line_of_bad_utf8(const std::string& text) {
  int line = 1;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') ++line;
    if (byte == 0) return line;
    const size_t more = byte < 0x80                   ? 0
                        : byte >= 0xc2 && byte < 0xe0 ? 1
                        : byte >= 0xe0 && byte < 0xf0 ? 2
                        : byte >= 0xf0 && byte < 0xf5 ? 3
                                                      : text.size();
    if (more >= text.size() - i) return line;
    for (size_t k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0U) != 0x80U) return line;
    i += more + 1;
  }
  return 0;
}

Tree parse_yaml(const std::string& content, const std::string& file, Problems& problems) {
  const size_t before = problems.size();
  const std::string text = content.substr(content.starts_with(kByteOrderMark) ? 3 : 0);
  if (const int line = line_of_bad_utf8(text); line > 0)
    problems.add(at_line(file, line), "", "found bytes that are not UTF-8, expected a YAML text");
  else if (!file.empty())
    check_lines(text, file, problems);
  if (problems.size() > before) return {};
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1)
      problems.add(at_line(file, documents[1].Mark().line + 1), "",
                   "found a second document after `---`, expected one");
    Tree none;
    none.line = 1;
    return documents.empty() ? none : TreeMaker(file, problems).make(documents[0], 1, 0);
  } catch (const YAML::Exception& error) {
    const int line = error.mark.line + 1;
    problems.add(at_line(file, line > 0 ? line : 1), key_on_line(text, line),
                 "this is not YAML: " + error.msg + ". Expected `key: value`, indented by spaces");
  }
  return {};
}

}  // namespace fsdp::config
