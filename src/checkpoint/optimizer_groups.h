// Matches the parameter groups of a checkpoint with those of an optimizer.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fsdp::detail {

// A parameter group, by the names its parameters have in the checkpoint.
struct GroupNames {
  std::set<std::string> loaded;  // parameters whose values are loaded
  bool has_others = false;       // it has other parameters: left out by a filter, or of another shape

  bool is_empty() const { return loaded.empty() && !has_others; }
};

// Note [Matching groups]
// Options of a group belong to its parameters, so groups are matched by names and never by index. Two groups
// match if the same parameters of theirs are loaded. A group of which nothing is loaded keeps its options.
// Groups without any parameter have no names, and are matched in order.
//
// For each group `here`, the index of its match in `saved`; none: it keeps its options. Adds to `errors` the
// reasons why groups do not fit.
std::vector<std::optional<size_t>> match_groups(const std::vector<GroupNames>& here,
                                                const std::vector<GroupNames>& saved,
                                                std::vector<std::string>& errors);

}  // namespace fsdp::detail
