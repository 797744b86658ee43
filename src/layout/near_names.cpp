#include "layout/near_names.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

namespace fsdp::detail {

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // from a's first i letters to b's first j
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> near_names(std::string_view wanted, const std::vector<std::string>& known,
                                    size_t most) {
  std::vector<std::pair<size_t, std::string_view>> ranked;
  std::unordered_set<std::string_view> seen{""};
  for (const std::string& name : known)
    if (seen.insert(name).second) ranked.emplace_back(edit_distance(wanted, name), name);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  ranked.resize(std::min(most, ranked.size()));
  std::vector<std::string> nearest;
  for (const auto& [distance, name] : ranked) nearest.emplace_back(name);
  return nearest;
}

}  // namespace fsdp::detail
