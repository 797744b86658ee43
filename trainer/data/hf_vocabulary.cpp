#include "trainer/data/hf_vocabulary.h"

#include <utility>

#include "trainer/data/byte_alphabet.h"
#include "trainer/data/error.h"

namespace fsdp::data {

HfVocabulary::HfVocabulary(const JsonValue& vocab) : where_(vocab.where()) {
  std::vector<bool> taken;
  for (const auto& [token, number] : vocab.object().items()) {
    const int32_t value = JsonValue(number, where_ + ": '" + token + "'").token();
    const auto index = static_cast<size_t>(value);
    if (taken.size() <= index) taken.resize(index + 1);
    if (taken[index])
      vocab.refuse("token " + std::to_string(value) + " comes twice, the second time for '" + token + "'");
    taken[index] = true;
    tokens_.emplace(token, value);
  }
  if (tokens_.empty()) vocab.refuse("the vocabulary is empty");
  vocabulary_.bytes.resize(taken.size());
}

const int32_t* HfVocabulary::find(std::string_view token) const {
  const auto found = tokens_.find(std::string(token));
  return found == tokens_.end() ? nullptr : &found->second;
}

std::string& HfVocabulary::bytes_at(int32_t token) {
  const auto index = static_cast<size_t>(token);
  if (vocabulary_.bytes.size() <= index) vocabulary_.bytes.resize(index + 1);
  return vocabulary_.bytes[index];
}

void HfVocabulary::add_merge(const std::string& left, const std::string& right, const std::string& where) {
  Merge merge{.rank = static_cast<int32_t>(vocabulary_.merges.size())};
  for (const auto& [token, number] :
       {std::pair(left, &merge.left), {right, &merge.right}, {left + right, &merge.result}}) {
    const int32_t* found = find(token);
    if (found == nullptr)
      throw DataError(where + ": the merge of '" + left + "' and '" + right + "' needs the token '" + token +
                      "', which is not in the vocabulary");
    *number = *found;
  }
  vocabulary_.merges.push_back(merge);
}

void HfVocabulary::add_token(AddedToken token, const std::string& where) {
  if (token.text.empty()) throw DataError(where + ": an added token has no text");
  if (const int32_t* known = find(token.text); known != nullptr && *known != token.token)
    throw DataError(where + ": '" + token.text + "' is token " + std::to_string(token.token) +
                    " here, and token " + std::to_string(*known) + " in the vocabulary");
  std::string& bytes = bytes_at(token.token);
  if (!bytes.empty())
    throw DataError(where + ": token " + std::to_string(token.token) + " comes twice, as '" + bytes +
                    "' and as '" + token.text + "'");
  bytes = token.text;
  vocabulary_.added.push_back(std::move(token));
}

BpeVocabulary HfVocabulary::take() && {
  for (const auto& [token, number] : tokens_) {
    std::string& bytes = bytes_at(number);
    if (!bytes.empty()) {
      if (bytes == token) continue;  // an added token
      throw DataError(where_ + ": token " + std::to_string(number) + " is '" + token +
                      "', and the added token '" + bytes + "'");
    }
    const std::optional<std::string> found = bytes_of_token(token);
    if (!found || found->empty())
      throw DataError(where_ + ": the token '" + token +
                      "' is not written in the characters of byte-level BPE");
    bytes = *found;
  }
  return std::move(vocabulary_);
}

}  // namespace fsdp::data
