// What `fsdp doctor` found: facts, and what to do about those that are wrong.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::doctor {

enum class Level : uint8_t {
  ok,
  warning,  // runs work, but slower or less safely than they could
  problem,  // runs fail
};

struct Finding {
  Level level = Level::ok;
  std::string subject = {};  // "shared memory"
  std::string text = {};     // what was found
  std::string advice = {};   // what to do; empty if `level` is ok
};
using Findings = std::vector<Finding>;

nlohmann::json to_json(const Findings& findings);
// Skips what is none.
Findings findings_from(const nlohmann::json& json);

}  // namespace fsdp::doctor
