#include "trainer/data/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "trainer/data/error.h"

namespace fsdp::data {

namespace {

constexpr size_t kBlockTokens = size_t{1} << 16;
constexpr int kRounds = 2;

std::array<int32_t, 256> tokens_of_bytes(const std::unordered_map<std::string_view, int32_t>& pieces,
                                         const std::string& where) {
  std::array<int32_t, 256> tokens{};
  for (size_t byte = 0; byte < tokens.size(); ++byte) {
    const char text = static_cast<char>(byte);
    const auto found = pieces.find(std::string_view(&text, 1));
    if (found == pieces.end())
      throw DataError(where + ": byte " + std::to_string(byte) +
                      " has no token. Byte pairs need all 256 bytes (train with ByteLevel.alphabet() as the "
                      "initial alphabet)");
    tokens[byte] = found->second;
  }
  return tokens;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens specials) {
  std::vector<int32_t> all;
  encode(text, specials, [&all](std::span<const int32_t> tokens, size_t) {
    all.insert(all.end(), tokens.begin(), tokens.end());
  });
  return all;
}

BpeTokenizer::BpeTokenizer(BpeVocabulary vocabulary, const std::string& where)
    : vocabulary_(std::move(vocabulary)) {
  std::vector<bool> added(vocabulary_.bytes.size());
  for (const AddedToken& one : vocabulary_.added) {
    added[static_cast<size_t>(one.token)] = true;
    begins_added_[static_cast<unsigned char>(one.text.front())] = true;
  }
  for (size_t token = 0; token < vocabulary_.bytes.size(); ++token)
    if (!added[token] && !vocabulary_.bytes[token].empty())
      pieces_.emplace(vocabulary_.bytes[token], static_cast<int32_t>(token));
  // The longest of those that begin alike is found first.
  std::stable_sort(vocabulary_.added.begin(), vocabulary_.added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.text.size() > b.text.size(); });
  pairs_ = std::make_unique<BytePairs>(tokens_of_bytes(pieces_, where), vocabulary_.merges);
  vocabulary_.merges = {};
}

void BpeTokenizer::encode(std::string_view text, SpecialTokens specials, const TakeTokens& take) {
  if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    std::array<char, 8> byte{};
    std::snprintf(byte.data(), byte.size(), "0x%02X",
                  static_cast<unsigned>(static_cast<unsigned char>(text[at])));
    throw InvalidUtf8(
        at, std::string("the text is not UTF-8: the byte ") + byte.data() + " belongs to no character");
  }
  tokens_.clear();
  take_ = &take;
  bytes_read_ = 0;
  encode_round(text, specials, 0);
  if (!tokens_.empty()) take(tokens_, text.size());
}

// The token whose text is at the beginning of `text`.
const AddedToken* BpeTokenizer::added_at(std::string_view text, int round) const {
  if (!begins_added_[static_cast<unsigned char>(text.front())]) return nullptr;
  for (const AddedToken& one : vocabulary_.added)
    if (one.round == round && text.starts_with(one.text)) return &one;
  return nullptr;
}

void BpeTokenizer::encode_round(std::string_view text, SpecialTokens specials, int round) {
  if (round == kRounds) return split(text, 0);
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* found = added_at(text.substr(at), round);
    if (found == nullptr) {
      ++at;
      continue;
    }
    if (found->special && specials == SpecialTokens::as_text) {
      at += found->text.size();
      continue;
    }
    encode_round(text.substr(done, at - done), specials, round + 1);
    tokens_.push_back(found->token);
    done = at += found->text.size();
    bytes_read_ += found->text.size();
  }
  encode_round(text.substr(done), specials, round + 1);
}

void BpeTokenizer::split(std::string_view text, size_t step) {
  if (text.empty()) return;
  if (step == vocabulary_.steps.size()) return encode_piece(text);
  const SplitStep& how = vocabulary_.steps[step];
  std::string spaced;
  if (how.add_space && text.front() != ' ') text = spaced.append(" ").append(text);
  if (!how.pattern) return split(text, step + 1);
  how.pattern->split(text, [&](std::string_view piece, bool matched) {
    if (matched || how.keep_unmatched) split(piece, step + 1);
  });
}

void BpeTokenizer::encode_piece(std::string_view piece) {
  bytes_read_ += piece.size();
  const auto whole = vocabulary_.whole_pieces ? pieces_.find(piece) : pieces_.end();
  if (whole != pieces_.end())
    tokens_.push_back(whole->second);
  else
    pairs_->encode(piece, tokens_);
  if (tokens_.size() < kBlockTokens) return;
  (*take_)(tokens_, bytes_read_);
  tokens_.clear();
}

std::string BpeTokenizer::decode(std::span<const int32_t> tokens) const {
  std::string bytes;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size() || vocabulary_.bytes[static_cast<size_t>(token)].empty())
      throw DataError("token " + std::to_string(token) + " is not in the vocabulary of " +
                      std::to_string(vocab_size()) + " tokens of the tokenizer " + vocabulary_.name);
    bytes += vocabulary_.bytes[static_cast<size_t>(token)];
  }
  return bytes;
}

}  // namespace fsdp::data
