// Cuts a text into pieces by a regular expression, before the bytes of each piece are merged into tokens.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace fsdp::data {

// The library whose reading of a pattern is followed where libraries differ.
enum class PatternSyntax : uint8_t {
  rust,       // tiktoken: $ is the end of the text
  oniguruma,  // tokenizers: ^ and $ are those of a line
};

// Compiled by PCRE2 with Unicode properties. \s means Unicode's white space, as in both libraries. Properties
// of characters are those of PCRE2's version of Unicode. One thread at a time.
class SplitPattern {
 public:
  // Throws DataError for a pattern that PCRE2 refuses, and for \w, \W, \b, \B, \h, \H and classes within
  // classes, which it reads differently.
  SplitPattern(const std::string& pattern, PatternSyntax syntax);
  ~SplitPattern();
  SplitPattern(const SplitPattern&) = delete;
  SplitPattern& operator=(const SplitPattern&) = delete;

  // Calls `take` for matches and what lies between them, in order: together they are the text, which must be
  // UTF-8. Matches that are empty are none.
  void split(std::string_view text,
             const std::function<void(std::string_view piece, bool matched)>& take) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

// The pattern of GPT-2, and of tiktoken's r50k and p50k.
extern const char* const kGpt2Pattern;
// The pattern of Llama 3.
extern const char* const kLlama3Pattern;
// The pattern of tiktoken's cl100k. It differs from Llama 3's in white space at the end of a text.
extern const char* const kCl100kPattern;
// The pattern of tiktoken's o200k.
extern const char* const kO200kPattern;

}  // namespace fsdp::data
