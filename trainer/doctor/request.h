// What `fsdp doctor` hands to its ranks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::doctor {

struct Request {
  std::string folder = ".";           // where runs are to be kept
  double megabytes = 16;              // of the buffers that are timed
  int timeout = 60;                   // seconds for ranks to meet, and for each collective
  bool json = false;                  // the report as JSON
  std::string typed = "fsdp doctor";  // the command, for messages

  std::string text() const {
    return nlohmann::json({{"folder", folder},
                           {"megabytes", megabytes},
                           {"timeout", timeout},
                           {"json", json},
                           {"typed", typed}})
        .dump();
  }
  // Throws nlohmann::json::exception.
  static Request from(const std::string& text) {
    const auto json = nlohmann::json::parse(text);
    return {.folder = json.at("folder"),
            .megabytes = json.at("megabytes"),
            .timeout = json.at("timeout"),
            .json = json.at("json"),
            .typed = json.at("typed")};
  }
};

}  // namespace fsdp::doctor
