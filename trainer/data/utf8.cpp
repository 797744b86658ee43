#include "trainer/data/tokenizer.h"

namespace fsdp::data {

namespace {

struct Sequence {
  size_t bytes;  // length of the character, or of the longest prefix of one that begins here, at least 1
  bool valid;
};

// For the first byte of a character: how many bytes follow it, and the values that the first of these may
// have (which rule out long forms, surrogates and values above U+10FFFF).
struct Lead {
  size_t following;
  unsigned char least, most;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {0, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  return {1, 1, 0};  // no byte fits
}

Sequence sequence_at(std::string_view text, size_t at) {
  const Lead lead = lead_of(static_cast<unsigned char>(text[at]));
  for (size_t i = 1; i <= lead.following; ++i) {
    if (at + i >= text.size()) return {i, false};
    const auto byte = static_cast<unsigned char>(text[at + i]);
    const unsigned char least = i == 1 ? lead.least : 0x80, most = i == 1 ? lead.most : 0xBF;
    if (byte < least || byte > most) return {i, false};
  }
  return {lead.following + 1, true};
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.valid) return at;
    at += sequence.bytes;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const Sequence sequence = sequence_at(bytes, at);
    text += sequence.valid ? bytes.substr(at, sequence.bytes) : std::string_view("\xEF\xBF\xBD");
    at += sequence.bytes;
  }
  return text;
}

}  // namespace fsdp::data
