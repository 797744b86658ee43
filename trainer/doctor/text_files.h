// Short files of /proc and /sys.
#pragma once

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

namespace fsdp::doctor {

// Without line breaks at the end; empty if it cannot be read.
inline std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// The rest of the first line that begins with `name`, behind its colon; empty: there is none.
inline std::string value_in(const std::string& text, const std::string& name) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (text.compare(at, name.size(), name) == 0) {
      const size_t colon = text.find(':', at);
      const size_t begin = colon == std::string::npos ? end : text.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos || begin >= end ? "" : text.substr(begin, end - begin);
    }
    at = end + 1;
  }
  return "";
}

}  // namespace fsdp::doctor
