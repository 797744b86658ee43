#include "trainer/data/dataset.h"

#include <algorithm>
#include <string>

#include "trainer/data/error.h"

namespace fsdp::data {

Dataset::Dataset(std::vector<std::shared_ptr<const TokenSource>> sources, int64_t length)
    : sources_(std::move(sources)), length_(length) {
  if (length_ < 1)
    throw DataError("a sequence length of " + std::to_string(length_) + "; at least 1 is expected");
  int64_t tokens = 0;
  for (const auto& source : sources_) {
    tokens += source->size();
    ends_.push_back(tokens);
    has_mask_ = has_mask_ || source->has_mask();
  }
  if (tokens < length_ + 1)
    throw DataError("the data has " + std::to_string(tokens) + " tokens; a sample of " +
                    std::to_string(length_) +
                    " needs one more than that. Give more data, or a shorter sequence length");
  samples_ = static_cast<uint64_t>((tokens - 1) / length_);
}

template <class Element, class Read>
void Dataset::read_across(int64_t begin, std::span<Element> out, const Read& read) const {
  auto source = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  while (!out.empty()) {
    const int64_t start = source == 0 ? 0 : ends_[source - 1];
    const size_t count = std::min(out.size(), static_cast<size_t>(ends_[source] - begin));
    read(*sources_[source], begin - start, out.first(count));
    out = out.subspan(count);
    begin += static_cast<int64_t>(count);
    ++source;
  }
}

void Dataset::read(uint64_t sample, std::span<int64_t> inputs, std::span<int64_t> targets) const {
  if (sample >= samples_)
    throw DataError("sample " + std::to_string(sample) + " was asked for; there are " +
                    std::to_string(samples_));
  const int64_t begin = static_cast<int64_t>(sample) * length_;
  const auto tokens = [](const TokenSource& source, int64_t at, std::span<int64_t> out) {
    source.read(at, out);
  };
  read_across(begin + 1, targets, tokens);
  read_across(begin, inputs.first(1), tokens);
  std::copy(targets.begin(), targets.end() - 1, inputs.begin() + 1);
  if (!has_mask_) return;
  std::vector<uint8_t> counts(targets.size());
  read_across(
      begin + 1, std::span<uint8_t>(counts),
      [](const TokenSource& source, int64_t at, std::span<uint8_t> out) { source.read_mask(at, out); });
  for (size_t i = 0; i < targets.size(); ++i)
    if (counts[i] == 0) targets[i] = kIgnoredTarget;
}

}  // namespace fsdp::data
