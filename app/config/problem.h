// Problems of a configuration, collected so that one run reports all.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace fsdp::config {

class Problems {
 public:
  // `where`: "config.yaml:12", "flag --devices". `key` may be empty.
  void add(const std::string& where, const std::string& key, const std::string& text) {
    std::string line = where;
    for (const std::string& part : {key, text})
      if (!part.empty()) line += (line.empty() ? "" : ": ") + part;
    if (known_.insert(line).second) lines_.push_back(std::move(line));
  }
  bool empty() const { return lines_.empty(); }
  size_t size() const { return lines_.size(); }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
  std::set<std::string> known_;
};

}  // namespace fsdp::config
