#include "trainer/data/token_source.h"

#include <algorithm>
#include <string>

#include "trainer/data/error.h"

namespace fsdp::data {

void check_range(const std::string& where, int64_t begin, size_t count, int64_t size) {
  if (begin >= 0 && begin <= size && count <= static_cast<size_t>(size - begin)) return;
  throw DataError(where + ": tokens from " + std::to_string(begin) + " on, " + std::to_string(count) +
                  " of them, were asked for; there are " + std::to_string(size));
}

void TokenSource::read_mask(int64_t begin, std::span<uint8_t> out) const {
  check_range("mask", begin, out.size(), size());
  std::fill(out.begin(), out.end(), uint8_t{1});
}

MemoryTokens::MemoryTokens(std::vector<int32_t> tokens)
    : tokens_(std::move(tokens)), counted_(tokens_.size(), 1) {}

void MemoryTokens::add(std::span<const int32_t> tokens, bool counted) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  counted_.insert(counted_.end(), tokens.size(), counted ? 1 : 0);
  if (!counted && !tokens.empty()) has_mask_ = true;
}

void MemoryTokens::read(int64_t begin, std::span<int64_t> out) const {
  check_range("tokens in memory", begin, out.size(), size());
  std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
}

void MemoryTokens::read_mask(int64_t begin, std::span<uint8_t> out) const {
  check_range("tokens in memory", begin, out.size(), size());
  std::copy_n(counted_.begin() + begin, out.size(), out.begin());
}

}  // namespace fsdp::data
