// A part of another stream of tokens, such as the tail that is kept for validation.
#pragma once

#include <memory>
#include <utility>

#include "trainer/data/token_source.h"

namespace fsdp::data {

class TokenRange final : public TokenSource {
 public:
  // Tokens [begin, begin + size) of `whole`.
  TokenRange(std::shared_ptr<const TokenSource> whole, int64_t begin, int64_t size)
      : whole_(std::move(whole)), begin_(begin), size_(size) {}

  int64_t size() const override { return size_; }
  void read(int64_t begin, std::span<int64_t> out) const override {
    check_range("a part of a token file", begin, out.size(), size_);
    whole_->read(begin_ + begin, out);
  }
  bool has_mask() const override { return whole_->has_mask(); }
  void read_mask(int64_t begin, std::span<uint8_t> out) const override {
    check_range("a part of a token file", begin, out.size(), size_);
    whole_->read_mask(begin_ + begin, out);
  }

 private:
  std::shared_ptr<const TokenSource> whole_;
  int64_t begin_, size_;
};

}  // namespace fsdp::data
