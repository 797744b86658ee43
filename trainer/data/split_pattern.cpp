#include "trainer/data/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>

#include "trainer/data/error.h"

namespace fsdp::data {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kCl100kPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
const char* const kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// PCRE2's \s has U+180E, which has not been white space since Unicode 6.3.
constexpr const char* kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

[[noreturn]] void refuse(const std::string& pattern, const std::string& why) {
  throw DataError("the pattern " + pattern + " that splits a text cannot be used: " + why);
}

// `pattern` for PCRE2: \s and \S by the characters they mean.
std::string translate(const std::string& pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (in_class && (c == '[' || (c == '&' && pattern.compare(i, 2, "&&") == 0)))
      refuse(pattern, "a class within [...] is not supported");
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    if (c != '\\' || i + 1 == pattern.size()) {
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (std::string_view("wWbBhH").find(escaped) != std::string_view::npos)
      refuse(pattern, std::string("\\") + escaped + " is not supported");
    if (escaped == 'S' && in_class) refuse(pattern, "\\S within [...] is not supported");
    if (escaped == 's')
      out += in_class ? kWhiteSpace : std::string("[") + kWhiteSpace + "]";
    else if (escaped == 'S')
      out += std::string("[^") + kWhiteSpace + "]";
    else
      out += std::string("\\") + escaped;
  }
  return out;
}

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct SplitPattern::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;

  Compiled() = default;
  ~Compiled() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
};

SplitPattern::SplitPattern(const std::string& pattern, PatternSyntax syntax)
    : compiled_(std::make_unique<Compiled>()) {
  const std::string translated = translate(pattern);
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
                           (syntax == PatternSyntax::rust ? PCRE2_DOLLAR_ENDONLY : PCRE2_MULTILINE);
  int code = 0;
  PCRE2_SIZE offset = 0;
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options,
                                  &code, &offset, nullptr);
  if (compiled_->code == nullptr) refuse(pattern, message_of(code));
  // Without a JIT for this machine, the interpreter matches the same.
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);
  compiled_->match = pcre2_match_data_create_from_pattern(compiled_->code, nullptr);
  compiled_->context = pcre2_match_context_create(nullptr);
  if (compiled_->match == nullptr || compiled_->context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(compiled_->context, UINT32_MAX);
  pcre2_set_heap_limit(compiled_->context, UINT32_MAX);
  pcre2_set_depth_limit(compiled_->context, UINT32_MAX);
}

SplitPattern::~SplitPattern() = default;

void SplitPattern::split(std::string_view text,
                         const std::function<void(std::string_view piece, bool matched)>& take) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(compiled_->match);
  size_t done = 0, from = 0;
  while (from < text.size()) {
    const int code = pcre2_match(compiled_->code, subject, text.size(), from,
                                 PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, compiled_->match, compiled_->context);
    if (code == PCRE2_ERROR_NOMATCH) break;
    if (code < 0)
      throw DataError("a text cannot be split at byte " + std::to_string(from) + ": " + message_of(code));
    if (found[0] > done) take(text.substr(done, found[0] - done), false);
    take(text.substr(found[0], found[1] - found[0]), true);
    done = from = found[1];
  }
  if (done < text.size()) take(text.substr(done), false);
}

}  // namespace fsdp::data
