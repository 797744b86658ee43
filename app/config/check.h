// Contradictions: values that are each allowed, but not together.
#pragma once

#include <string>
#include <vector>

#include "app/config/problem.h"
#include "app/config/resolve.h"

namespace fsdp::config {

// Adds a problem for every contradiction of `settings`, which are complete, and a note for every value that
// was set but has no effect. A problem names the place of the value that somebody set.
void check(const Settings& settings, const Machine& machine, std::vector<std::string>& notes,
           Problems& problems);

// Adds a problem for files that do not exist and for more ranks than this machine has GPUs.
void check_machine(const Settings& settings, const Machine& machine, Problems& problems);

// The place at which to change `keys`: the origin of the first of them that was set, and that key's name in
// messages.
struct Blame {
  std::string where, key;
};
Blame blame(const Settings& settings, const std::vector<std::string>& keys);

}  // namespace fsdp::config
