#include "app/config/near.h"

#include <algorithm>
#include <cctype>

namespace fsdp::config {

namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

size_t edit_distance(const std::string& first, const std::string& second) {
  const std::string a = lower(first), b = lower(second);
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  return cost[a.size()][b.size()];
}

std::string nearest(const std::string& wanted, const std::vector<std::string>& known) {
  constexpr size_t kLongestName = 200;
  if (wanted.empty() || wanted.size() > kLongestName) return "";
  std::string best;
  size_t least = std::max<size_t>(2, wanted.size() / 3) + 1;
  for (const std::string& name : known) {
    const size_t distance = edit_distance(wanted, name);
    if (distance < least && distance < std::max(wanted.size(), name.size())) {
      least = distance;
      best = name;
    }
  }
  if (!best.empty()) return best;
  // A part of the name, or a longer one: `accumulation` for `gradient_accumulation_steps`.
  constexpr size_t kTelling = 4;  // letters
  for (const std::string& name : known)
    if (wanted.size() >= kTelling && lower(name).find(lower(wanted)) != std::string::npos) return name;
  return "";
}

std::string did_you_mean(const std::string& wanted, const std::vector<std::string>& known) {
  const std::string name = nearest(wanted, known);
  return name.empty() ? "" : ", did you mean '" + name + "'?";
}

std::string one_of(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

}  // namespace fsdp::config
