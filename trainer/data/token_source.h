// A stream of tokens that can be read at any position.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fsdp::data {

// Reading is const and may happen on several threads. Positions outside [0, size()) are refused with
// DataError, and so are tokens that are not below the vocabulary of a source that has one.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t size() const = 0;
  // Tokens [begin, begin + out.size()).
  virtual void read(int64_t begin, std::span<int64_t> out) const = 0;

  // Whether some tokens do not count in the loss, such as those of a prompt.
  virtual bool has_mask() const { return false; }
  // 1 where the loss of predicting that token counts, else 0. All 1 without a mask.
  virtual void read_mask(int64_t begin, std::span<uint8_t> out) const;
};

// Receives tokens while texts are encoded.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // `counted`: whether the loss of predicting these tokens counts.
  virtual void add(std::span<const int32_t> tokens, bool counted) = 0;
};

// Tokens in memory, four bytes each and one for the mask.
class MemoryTokens final : public TokenSource, public TokenSink {
 public:
  MemoryTokens() = default;
  // All of them count in the loss.
  explicit MemoryTokens(std::vector<int32_t> tokens);

  void add(std::span<const int32_t> tokens, bool counted) override;

  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  void read(int64_t begin, std::span<int64_t> out) const override;
  bool has_mask() const override { return has_mask_; }
  void read_mask(int64_t begin, std::span<uint8_t> out) const override;

 private:
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> counted_;
  bool has_mask_ = false;
};

// Throws DataError, which begins with `where`, unless [begin, begin + count) lies in [0, size).
void check_range(const std::string& where, int64_t begin, size_t count, int64_t size);

}  // namespace fsdp::data
