// The texts of `fsdp generate` as people type and read them, to tokens and back. Needs no LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/tokenizer.h"

namespace fsdp::train {

// One text at a time.
class Words {
 public:
  virtual ~Words() = default;

  // The tokens of a prompt. An empty one is the end of text, if the tokenizer has one: a text begins there.
  // Throws data::DataError for a prompt that has no tokens or cannot be read.
  virtual std::vector<int64_t> encode(const std::string& prompt) const = 0;
  // Adds `token`. Returns the text that can be shown now.
  virtual std::string next(int64_t token) = 0;
  // The rest of the text, and a line end.
  virtual std::string finish() = 0;

  virtual std::optional<int64_t> end_of_text() const = 0;
  virtual int64_t vocab_size() const = 0;  // tokens from here on have no text; 0: not known
};

// Characters. Without a tokenizer: token ids, separated by spaces.
std::unique_ptr<Words> make_words(std::unique_ptr<data::Tokenizer> tokenizer);

}  // namespace fsdp::train
