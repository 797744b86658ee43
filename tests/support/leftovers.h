// What a test must not leave behind: shared memory, files, processes.
#pragma once

#include <set>
#include <string>

namespace fsdp::testing {

// Takes stock at construction, of what this process and its descendants hold: other programs of the machine
// may use the library meanwhile. While it lives, orphans of this process become its children.
class Leftovers {
 public:
  Leftovers();
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  // What is there now and was not then, one per line; empty when nothing is.
  std::string found_since() const;

 private:
  static std::set<std::string> take_stock();
  std::set<std::string> before_;
};

}  // namespace fsdp::testing
