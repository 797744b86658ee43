#include "plan_words.h"

namespace fsdp::testing {

using namespace detail;

std::vector<Moment> moments_of(const std::vector<Access>& trace) {
  std::vector<Moment> moments;
  for (const Access& access : trace)
    if (moments.empty() || moments.back().run != access) moments.push_back({.run = access});
  return moments;
}

std::vector<Moment> moments_of(const std::string& text) {
  std::vector<Moment> moments;
  Phase phase = Phase::forward;
  for (const char c : text) {
    if (c == '|') phase = Phase::backward;
    if (c == '.') moments.push_back({});
    if (c < '0' || c > '9') continue;
    const Access access{c - '0', phase};
    if (moments.empty() || moments.back().run != access) moments.push_back({.run = access});
  }
  return moments;
}

std::string words(const std::vector<Instruction>& list) {
  static constexpr const char* kNames[] = {"release", "gather", "use",    "open",
                                           "reduce",  "across", "settle", "agree"};
  std::string text;
  for (const Instruction& step : list) {
    text += (text.empty() ? "" : ", ") + std::string(kNames[static_cast<size_t>(step.action)]);
    if (step.action != Action::agree) text += " " + std::to_string(step.unit);
    if (step.offset >= 0) text += "@" + std::to_string(step.offset / kBlock);
  }
  return text;
}

std::vector<std::string> words(const std::vector<Moment>& moments) {
  std::vector<std::string> lines;
  for (const Moment& moment : moments) {
    const char* phase = moment.run && moment.run->phase == Phase::forward ? "f" : "b";
    const std::string at = moment.run ? phase + std::to_string(moment.run->unit) : "over";
    lines.push_back(at + ": " + words(moment.steps));
  }
  return lines;
}

std::vector<std::string> words(const Plan& plan) {
  std::vector<std::string> lines = words(plan.moments);
  lines.push_back("end: " + words(plan.after));
  return lines;
}

std::vector<UnitNeed> units_of(const std::vector<int64_t>& blocks, const std::set<UnitId>& kept) {
  std::vector<UnitNeed> units;
  for (const int64_t n : blocks) {
    const bool keep = kept.contains(static_cast<UnitId>(units.size()));
    units.push_back({.slot_bytes = n * kBlock, .stays_gathered = keep});
  }
  return units;
}

PrefetchLists random_lists(std::mt19937& random, size_t units) {
  PrefetchLists lists(units);
  for (auto& list : lists) {
    if (random() % 3 != 0) continue;
    list.emplace();
    for (auto n = random() % 4; n > 0; --n) list->push_back(static_cast<UnitId>(random() % units));
  }
  return lists;
}

}  // namespace fsdp::testing
