// The tokenizer behind all vocabularies of byte pairs.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/data/byte_pairs.h"
#include "trainer/data/split_pattern.h"
#include "trainer/data/tokenizer.h"

namespace fsdp::data {

// A token that is found in the text itself, before it is split.
struct AddedToken {
  std::string text;
  int32_t token = 0;
  bool special = true;  // false: found also with SpecialTokens::as_text
  int round = 0;        // those of round 0 are found first, those of round 1 in what is left
};

// A step of splitting a text. Each step splits the pieces of the one before.
struct SplitStep {
  std::shared_ptr<const SplitPattern> pattern;  // null: pieces stay whole
  bool keep_unmatched = true;                   // whether text between matches is a piece too
  bool add_space = false;  // a piece gets a space in front if it has none; before the pattern
};

struct BpeVocabulary {
  std::string name;
  std::vector<std::string> bytes;  // [vocab_size], of each token; empty: there is no such token
  std::vector<Merge> merges;
  bool whole_pieces = false;  // a piece that is a token is not merged from its bytes
  std::vector<SplitStep> steps;
  std::vector<AddedToken> added;  // whose bytes are in `bytes` too
  std::optional<int32_t> end_of_text;
};

class BpeTokenizer final : public Tokenizer {
 public:
  // Throws DataError, which begins with `where`, if a byte has no token.
  BpeTokenizer(BpeVocabulary vocabulary, const std::string& where);

  using Tokenizer::encode;
  void encode(std::string_view text, SpecialTokens specials, const TakeTokens& take) override;
  std::string decode(std::span<const int32_t> tokens) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(vocabulary_.bytes.size()); }
  std::optional<int32_t> end_of_text() const override { return vocabulary_.end_of_text; }
  std::string name() const override { return vocabulary_.name; }

 private:
  const AddedToken* added_at(std::string_view text, int round) const;
  void encode_round(std::string_view text, SpecialTokens specials, int round);
  void split(std::string_view text, size_t step);
  void encode_piece(std::string_view piece);

  BpeVocabulary vocabulary_;
  std::unordered_map<std::string_view, int32_t> pieces_;  // into vocabulary_.bytes, without added tokens
  std::array<bool, 256> begins_added_{};                  // the first bytes of added tokens
  std::unique_ptr<BytePairs> pairs_;

  // State of the text that is being encoded.
  std::vector<int32_t> tokens_;
  const TakeTokens* take_ = nullptr;
  size_t bytes_read_ = 0;
};

}  // namespace fsdp::data
