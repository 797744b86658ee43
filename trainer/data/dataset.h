// Windows of a fixed length over streams of tokens: the samples that training sees.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/data/token_source.h"

namespace fsdp::data {

// A target that does not count in the loss, as PyTorch's cross entropy has it (ignore_index).
inline constexpr int64_t kIgnoredTarget = -100;

// Sample i covers tokens [i * L, i * L + L + 1) of the sources, laid end to end, where L = length: the first
// L are the input, the last L the targets. So every token but the first is a target once. Fewer than L tokens
// at the end are left out. Documents are packed: a window may hold several, with end-of-text between them,
// and attention sees all of it.
//
// Reading is const and may happen on several threads.
class Dataset {
 public:
  // Throws DataError if there are not enough tokens for one sample.
  Dataset(std::vector<std::shared_ptr<const TokenSource>> sources, int64_t length);

  int64_t length() const { return length_; }  // L
  uint64_t samples() const { return samples_; }
  int64_t tokens() const { return ends_.back(); }  // of all sources
  bool has_mask() const { return has_mask_; }

  // Fills `inputs` and `targets`, each [length]. Targets with mask 0 become kIgnoredTarget.
  void read(uint64_t sample, std::span<int64_t> inputs, std::span<int64_t> targets) const;

 private:
  template <class Element, class Read>
  void read_across(int64_t begin, std::span<Element> out, const Read& read) const;

  std::vector<std::shared_ptr<const TokenSource>> sources_;
  std::vector<int64_t> ends_;  // [sources], position after the last token of each
  int64_t length_;
  uint64_t samples_ = 0;
  bool has_mask_ = false;
};

}  // namespace fsdp::data
