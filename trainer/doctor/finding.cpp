#include "trainer/doctor/finding.h"

namespace fsdp::doctor {

namespace {
constexpr const char* kNames[] = {"ok", "warning", "problem"};
}

nlohmann::json to_json(const Findings& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& one : findings)
    list.push_back({{"level", kNames[static_cast<int>(one.level)]},
                    {"subject", one.subject},
                    {"text", one.text},
                    {"advice", one.advice}});
  return list;
}

Findings findings_from(const nlohmann::json& json) {
  Findings findings;
  for (const auto& one : json) {
    if (!one.is_object()) continue;
    const std::string level = one.value("level", "ok");
    findings.push_back({.level = level == kNames[2]   ? Level::problem
                                 : level == kNames[1] ? Level::warning
                                                      : Level::ok,
                        .subject = one.value("subject", ""),
                        .text = one.value("text", ""),
                        .advice = one.value("advice", "")});
  }
  return findings;
}

}  // namespace fsdp::doctor
