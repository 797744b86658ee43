#include "app/config/layers.h"

#include <algorithm>

#include "app/config/value.h"

namespace fsdp::config {

void Layers::add(const Key& key, Json value, Origin origin) {
  std::vector<Candidate>& all = candidates_[key.path];
  const auto later = std::find_if(all.begin(), all.end(),
                                  [&](const Candidate& other) { return other.origin.layer > origin.layer; });
  all.insert(later, {std::move(value), std::move(origin)});
}

const Candidate* Layers::winner(const std::string& path) const {
  const auto found = candidates_.find(path);
  return found == candidates_.end() ? nullptr : &found->second.back();
}

void Layers::fill(Settings& settings) const {
  for (const auto& [path, all] : candidates_) settings.set(path, all.back().value, all.back().origin);
}

std::vector<std::string> Layers::notes() const {
  std::vector<std::string> notes;
  for (const Key& key : schema()) {
    const auto found = candidates_.find(key.path);
    if (found == candidates_.end()) continue;
    const std::vector<Candidate>& all = found->second;
    const Candidate& won = all.back();
    const auto lost = std::find_if(all.rbegin(), all.rend(), [&](const Candidate& other) {
      const bool both_file = won.origin.layer <= Layer::stage && other.origin.layer >= Layer::section;
      return other.value != won.value && !both_file;
    });
    if (lost != all.rend())
      notes.push_back(key.path + ": " + shown(won.value) + " (" + won.origin.text + ") instead of " +
                      shown(lost->value) + " (" + lost->origin.text + ")");
  }
  return notes;
}

}  // namespace fsdp::config
