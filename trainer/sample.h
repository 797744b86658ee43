// Draws tokens from a model's logits. Needs no LibTorch.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace fsdp::train {

struct SampleOptions {
  double temperature = 1.0;  // logits are divided by it; 0: the most likely token, always
  int64_t top_k = 0;         // only this many of the most likely tokens; 0: all
  double top_p = 1.0;        // only the fewest most likely tokens whose probabilities sum to at least this
  uint64_t seed = 0;
};

// The same options and logits give the same tokens on every machine. top_k applies before top_p, and both
// after the temperature. Among equal logits the smaller token comes first. Threads: one.
class TokenSampler {
 public:
  explicit TokenSampler(const SampleOptions& options) : options_(options), random_(options.seed) {}

  // A token from 0 to logits.size() - 1. No logit is NaN, and one is finite.
  int64_t draw(std::span<const float> logits);

 private:
  struct Candidate {
    int64_t token;
    double weight;  // first its logit, then a probability times a constant
  };

  void keep_most_likely(size_t count);
  void logits_to_weights();
  void keep_top_p();

  SampleOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
};

}  // namespace fsdp::train
