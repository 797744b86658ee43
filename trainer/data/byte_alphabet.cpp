#include "trainer/data/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace fsdp::data {

namespace {

constexpr int kBytes = 256, kCharacters = 2 * kBytes;

// Bytes that are printable in Latin-1 stand for themselves, the others for U+0100 and on.
constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// -1: no byte.
constexpr std::array<int16_t, kCharacters> bytes_by_character() {
  std::array<int16_t, kCharacters> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  size_t next = kBytes;
  for (int byte = 0; byte < kBytes; ++byte)
    bytes[stands_for_itself(byte) ? static_cast<size_t>(byte) : next++] = static_cast<int16_t>(byte);
  return bytes;
}

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  static constexpr auto kByte = bytes_by_character();
  std::string bytes;
  for (size_t at = 0; at < token.size(); ++at) {
    auto character = static_cast<unsigned char>(token[at]);
    size_t code = character;
    if (character >= 0x80) {
      // All characters of the alphabet have at most two bytes.
      if ((character & 0xE0) != 0xC0 || at + 1 == token.size()) return std::nullopt;
      code = (character & 0x1FU) << 6 | (static_cast<unsigned char>(token[++at]) & 0x3FU);
    }
    if (code >= kByte.size() || kByte[code] < 0) return std::nullopt;
    bytes += static_cast<char>(kByte[code]);
  }
  return bytes;
}

}  // namespace fsdp::data
