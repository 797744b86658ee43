#include "trainer/generate_stream.h"

#include <algorithm>
#include <utility>

#include "trainer/data/tokenizer.h"

namespace fsdp::train {

namespace {

// Length of the character that begins with this byte; 1 for a byte that begins none.
size_t character_length(unsigned char byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return 2;
  if (byte >= 0xE0 && byte <= 0xEF) return 3;
  return byte >= 0xF0 && byte <= 0xF4 ? 4 : 1;
}

// Number of bytes at the end of `text` that may be the beginning of a character.
size_t incomplete_bytes(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(3, text.size()); ++length) {
    const auto byte = static_cast<unsigned char>(text[text.size() - length]);
    if (byte >= 0x80 && byte < 0xC0) continue;  // inside a character
    return character_length(byte) > length ? length : 0;
  }
  return 0;
}

}  // namespace

std::string CharacterStream::push(std::string_view bytes) {
  held_ += bytes;
  const size_t complete = held_.size() - incomplete_bytes(held_);
  std::string text = data::replace_invalid_utf8(std::string_view(held_).substr(0, complete));
  held_.erase(0, complete);
  return text;
}

std::string CharacterStream::finish() { return data::replace_invalid_utf8(std::exchange(held_, {})); }

}  // namespace fsdp::train
