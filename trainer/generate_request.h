// What `fsdp generate` asks its worker for, as JSON between the two processes. Needs no LibTorch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/sample.h"

namespace fsdp::train {

struct GenerateRequest {
  std::string prompt = {};  // UTF-8; for data without a known tokenizer: token ids
  int64_t max_tokens = 200;
  int64_t count = 1;    // number of texts; text i is drawn with seed + i
  int64_t step = -1;    // of the checkpoint; -1: the latest that is whole
  bool average = true;  // the averaged weights, if the run has them
  SampleOptions sample = {};
};

inline std::string to_json(const GenerateRequest& request) {
  const SampleOptions& sample = request.sample;
  return nlohmann::json{{"prompt", request.prompt},   {"max_tokens", request.max_tokens},
                        {"count", request.count},     {"step", request.step},
                        {"average", request.average}, {"temperature", sample.temperature},
                        {"top_k", sample.top_k},      {"top_p", sample.top_p},
                        {"seed", sample.seed}}
      .dump();
}

// Throws nlohmann::json::exception unless to_json() wrote it.
inline GenerateRequest generate_request(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {.prompt = json.at("prompt"),
          .max_tokens = json.at("max_tokens"),
          .count = json.at("count"),
          .step = json.at("step"),
          .average = json.at("average"),
          .sample = {.temperature = json.at("temperature"),
                     .top_k = json.at("top_k"),
                     .top_p = json.at("top_p"),
                     .seed = json.at("seed")}};
}

}  // namespace fsdp::train
