// write_error_file(): the message of a failed rank, for the launcher.
#include <fsdp/run_main.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string_view>

#include "base/env.h"

namespace fsdp {

namespace {

// Bytes of the UTF-8 character that `text` begins with; 0: it begins with none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (length == 1) return 1;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned second = byte(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second > 0x9F;
  const bool too_large = first == 0xF4 && second > 0x8F;
  return overlong || surrogate || too_large ? 0 : length;
}

// As a JSON string. What is not UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = character_length(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (length == 0) {
      out += "\\ufffd";
    } else if (first < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", first);
      out += escape;
    } else {
      if (first == '"' || first == '\\') out += '\\';
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + '"';
}

}  // namespace

void write_error_file(const std::string& message, int culprit) {
  const auto path = detail::env_string("TORCHELASTIC_ERROR_FILE");
  if (!path) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  // torchrun takes the earliest failure as the root cause, and counts whole seconds: a failure that follows
  // from another rank's is dated after it.
  constexpr int64_t kConsequence = 2;
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(now).count() + (culprit >= 0 ? kConsequence : 0);
  std::ofstream(*path) << R"({"message": {"message": )" << json_string(message)
                       << R"(, "extraInfo": {"timestamp": ")" << seconds << '"'
                       << (culprit >= 0 ? ", \"culprit\": " + std::to_string(culprit) : "") << "}}}\n";
}

}  // namespace fsdp
