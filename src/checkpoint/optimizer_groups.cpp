#include "checkpoint/optimizer_groups.h"

#include <algorithm>
#include <iterator>

namespace fsdp::detail {

namespace {

using NameSet = std::set<std::string>;

constexpr size_t kMostNames = 4;

std::string quoted(const std::string& name) { return "'" + name + "'"; }

std::string listed(const NameSet& names) {
  std::string text;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (shown++ == kMostNames) return text + " and " + std::to_string(names.size() - kMostNames) + " more";
    text += (text.empty() ? "" : ", ") + quoted(name);
  }
  return text;
}

NameSet all_of(const std::vector<GroupNames>& groups) {
  NameSet all;
  for (const GroupNames& group : groups) all.insert(group.loaded.begin(), group.loaded.end());
  return all;
}

NameSet without(const NameSet& names, const NameSet& others) {
  NameSet rest;
  std::set_difference(names.begin(), names.end(), others.begin(), others.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

// The reason why no saved group has the parameters of group `index`, all of which were saved.
std::string difference(size_t index, const NameSet& names, const std::vector<GroupNames>& saved) {
  const auto with = [&](const GroupNames& group) { return group.loaded.contains(*names.begin()); };
  const auto found = std::find_if(saved.begin(), saved.end(), with);
  const NameSet only_here = without(names, found->loaded), only_there = without(found->loaded, names);
  const std::string here = "group " + std::to_string(index) + " of the run";
  const std::string there = "group " + std::to_string(found - saved.begin()) + " of the checkpoint";
  return here + " and " + there + " both have " + quoted(*names.begin()) + ", but only " +
         (only_here.empty() ? there : here) + " has " + listed(only_here.empty() ? only_there : only_here) +
         ". Make parameter groups as the saved run did; their order does not matter";
}

}  // namespace

std::vector<std::optional<size_t>> match_groups(const std::vector<GroupNames>& here,
                                                const std::vector<GroupNames>& saved,
                                                std::vector<std::string>& errors) {
  const size_t errors_before = errors.size();
  if (const NameSet lost = without(all_of(saved), all_of(here)); !lost.empty())
    errors.push_back("the saved optimizer has " + listed(lost) + ", this one does not");
  if (const NameSet fresh = without(all_of(here), all_of(saved)); !fresh.empty())
    errors.push_back("this optimizer has " + listed(fresh) + ", the saved one does not");

  std::vector<std::optional<size_t>> matches(here.size());
  std::vector<bool> used(saved.size());
  for (size_t i = 0; i < here.size(); ++i) {
    if (here[i].loaded.empty() && !here[i].is_empty()) continue;
    for (size_t j = 0; j < saved.size() && !matches[i]; ++j)
      if (!used[j] && saved[j].loaded == here[i].loaded && saved[j].is_empty() == here[i].is_empty()) {
        used[j] = true;
        matches[i] = j;
      }
    if (!matches[i] && !here[i].is_empty() && errors.size() == errors_before)
      errors.push_back(difference(i, here[i].loaded, saved));
  }
  return matches;
}

}  // namespace fsdp::detail
