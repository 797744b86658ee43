// What a run must not leave behind: shared memory, files, processes.
#pragma once

#include <set>
#include <string>

namespace fsdp::testing {

// Takes stock at construction.
class Leftovers {
 public:
  Leftovers();
  // What is there now and was not then, one per line; empty when nothing is.
  std::string found_since() const;

 private:
  static std::set<std::string> take_stock();
  std::set<std::string> before_;
};

}  // namespace fsdp::testing
