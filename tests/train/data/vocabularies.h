// Small vocabularies of byte pairs, written as files.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support.h"

namespace fsdp::data {

using nlohmann::json;

inline std::string base64_of(std::string_view bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    for (size_t i = 0; i < 4; ++i) text += i <= bytes.size() - at ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

// Ranks of all bytes, then of `merged`.
inline std::string ranks_text(const std::vector<std::string>& merged) {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte)
    text += base64_of(std::string(1, static_cast<char>(byte))) + " " + std::to_string(rank++) + "\n";
  for (const std::string& token : merged) text += base64_of(token) + " " + std::to_string(rank++) + "\n";
  return text;
}

// The character that stands for a byte in byte-level vocabularies, in UTF-8.
inline std::string letter_of(int byte) {
  const auto plain = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!plain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += plain(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

inline std::string letters_of(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) letters += letter_of(static_cast<unsigned char>(byte));
  return letters;
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

// A tokenizer.json: token b is byte b, the merges follow from 256 on, <|endoftext|> is the last.
inline json tokenizer_json(const Pairs& merges) {
  json vocab, pairs = json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[letter_of(byte)] = byte;
  for (const auto& [left, right] : merges) {
    vocab[letters_of(left + right)] = vocab.size();
    pairs.push_back(letters_of(left) + " " + letters_of(right));
  }
  const json end = {
      {"id", vocab.size()}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}};
  return {{"version", "1.0"},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"added_tokens", {end}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", pairs}}}};
}

}  // namespace fsdp::data
