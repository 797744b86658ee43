// The common part of tokenizer.json, vocab.json and merges.txt: tokens and merges written in the byte
// alphabet.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "trainer/data/bpe_tokenizer.h"
#include "trainer/data/json_file.h"

namespace fsdp::data {

// Collects a vocabulary. Throws DataError for what does not fit together.
class HfVocabulary {
 public:
  // `vocab`: an object of tokens and their numbers.
  explicit HfVocabulary(const JsonValue& vocab);

  // nullptr: it is not in the vocabulary.
  const int32_t* find(std::string_view token) const;
  // The next merge. `where` begins messages.
  void add_merge(const std::string& left, const std::string& right, const std::string& where);
  void add_token(AddedToken token, const std::string& where);

  // The bytes of every token, merges and added tokens; the caller fills in the rest.
  BpeVocabulary take() &&;

 private:
  std::string& bytes_at(int32_t token);

  std::unordered_map<std::string, int32_t> tokens_;  // in the byte alphabet
  std::string where_;
  BpeVocabulary vocabulary_;
};

// Steps of the pre-tokenizer of a tokenizer.json.
std::vector<SplitStep> read_pre_tokenizer(const JsonValue& pre_tokenizer);

// ByteLevel as GPT-2 has it.
SplitStep gpt2_step();

}  // namespace fsdp::data
