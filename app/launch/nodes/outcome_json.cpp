#include "app/launch/nodes/outcome_json.h"

#include <algorithm>

namespace fsdp::launch {

namespace {

using Json = nlohmann::json;

template <typename Value>
Value value_of(const Json& json, const char* key, Value otherwise) {
  const auto at = json.find(key);
  if (at == json.end()) return otherwise;
  if constexpr (std::is_same_v<Value, std::string>)
    return at->is_string() ? at->get<std::string>() : otherwise;
  else if constexpr (std::is_same_v<Value, bool>)
    return at->is_boolean() ? at->get<bool>() : otherwise;
  else
    return at->is_number_integer() ? at->get<Value>() : otherwise;
}

// A message that all launchers get stays short, however much the ranks print.
constexpr size_t kLongestMessage = 4096, kLongestLastLine = 500;
constexpr size_t kMostTold = 16;  // ranks whose words are sent too

std::string shortened(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most) + "...";
}

Json to_json(const RankEnd& end, bool with_words) {
  Json lines = Json::array();
  for (const std::string& line : end.last_lines)
    if (with_words) lines.push_back(shortened(line, kLongestLastLine));
  return {{"rank", end.rank},
          {"exit_code", end.exit_code},
          {"signal", end.signal},
          {"kind", static_cast<int>(end.kind)},
          {"culprit", end.culprit},
          {"step", end.step},
          {"message", with_words ? shortened(end.message, kLongestMessage) : ""},
          {"last_lines", lines},
          {"log", end.log},
          {"host", end.host}};
}

RankEnd end_from(const Json& json) {
  RankEnd end;
  end.rank = value_of(json, "rank", 0);
  end.exit_code = value_of(json, "exit_code", 1);
  end.signal = value_of(json, "signal", 0);
  end.kind =
      static_cast<EndKind>(std::clamp(value_of(json, "kind", 0), 0, static_cast<int>(EndKind::killed)));
  end.culprit = value_of(json, "culprit", -1);
  end.step = value_of<int64_t>(json, "step", -1);
  end.message = value_of<std::string>(json, "message", "");
  end.log = value_of<std::string>(json, "log", "");
  end.host = value_of<std::string>(json, "host", "");
  if (const auto lines = json.find("last_lines"); lines != json.end() && lines->is_array())
    for (const Json& line : *lines)
      if (line.is_string()) end.last_lines.push_back(line.get<std::string>());
  return end;
}

}  // namespace

Json to_json(const Outcome& outcome) {
  Json ends = Json::array();
  const RankEnd* cause = outcome.cause();
  size_t told = 0;
  for (const RankEnd& end : outcome.ends)
    ends.push_back(to_json(end, &end == cause || (end.failed() && told++ < kMostTold)));
  return {{"ends", ends},
          {"world_size", outcome.world_size},
          {"host", outcome.host},
          {"interrupted_by", outcome.interrupted_by},
          {"abandoned", outcome.abandoned},
          {"not_again", outcome.not_again}};
}

Outcome outcome_from(const Json& json) {
  Outcome outcome;
  if (const auto ends = json.find("ends"); ends != json.end() && ends->is_array())
    for (const Json& end : *ends)
      if (end.is_object()) outcome.ends.push_back(end_from(end));
  outcome.world_size = value_of(json, "world_size", 1);
  outcome.host = value_of<std::string>(json, "host", "");
  outcome.interrupted_by = value_of(json, "interrupted_by", 0);
  outcome.abandoned = value_of(json, "abandoned", false);
  outcome.not_again = value_of<std::string>(json, "not_again", "");
  return outcome;
}

}  // namespace fsdp::launch
