// Values of a key from all layers: the last wins, and the others are remembered for notes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "app/config/settings.h"

namespace fsdp::config {

struct Candidate {
  Json value;
  Origin origin;
};

class Layers {
 public:
  // Within one layer, the value added last wins.
  void add(const Key& key, Json value, Origin origin);

  // The value that wins; null: only the default is there.
  const Candidate* winner(const std::string& path) const;
  // Sets every key that has a candidate.
  void fill(Settings& settings) const;
  // A line for every key for which a C++ caller, preset, environment or flag and the file differ: which won.
  std::vector<std::string> notes() const;

 private:
  std::map<std::string, std::vector<Candidate>> candidates_;  // sorted by layer
};

}  // namespace fsdp::config
