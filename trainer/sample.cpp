#include "trainer/sample.h"

#include <algorithm>
#include <cmath>

namespace fsdp::train {

int64_t TokenSampler::draw(std::span<const float> logits) {
  if (options_.temperature == 0) return std::ranges::max_element(logits) - logits.begin();
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) candidates_.push_back({static_cast<int64_t>(i), logits[i]});
  const auto most = static_cast<size_t>(options_.top_k);
  if (options_.top_k > 0 && most < candidates_.size()) keep_most_likely(most);
  logits_to_weights();
  if (options_.top_p < 1) keep_top_p();
  double sum = 0;
  for (const Candidate& one : candidates_) sum += one.weight;
  // 53 random bits in [0, 1): distributions of the standard library differ between implementations.
  double rest = std::ldexp(static_cast<double>(random_() >> 11), -53) * sum;
  for (const Candidate& one : candidates_)
    if ((rest -= one.weight) < 0) return one.token;
  // Rounding can leave a rest. The last token that has a weight takes it.
  const auto last = std::find_if(candidates_.rbegin(), candidates_.rend(),
                                 [](const Candidate& one) { return one.weight > 0; });
  return last->token;
}

void TokenSampler::keep_most_likely(size_t count) {
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
  };
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(count),
                    candidates_.end(), more_likely);
  candidates_.resize(count);
}

void TokenSampler::logits_to_weights() {
  const double largest = std::ranges::max_element(candidates_, {}, &Candidate::weight)->weight;
  for (Candidate& one : candidates_) one.weight = std::exp((one.weight - largest) / options_.temperature);
}

void TokenSampler::keep_top_p() {
  keep_most_likely(candidates_.size());
  double sum = 0, kept = 0;
  for (const Candidate& one : candidates_) sum += one.weight;
  size_t count = 0;
  while (count < candidates_.size() && (count == 0 || kept < options_.top_p * sum))
    kept += candidates_[count++].weight;
  candidates_.resize(count);
}

}  // namespace fsdp::train
