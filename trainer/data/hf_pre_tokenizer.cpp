#include "trainer/data/error.h"
#include "trainer/data/hf_vocabulary.h"

namespace fsdp::data {

namespace {

constexpr int kMostNested = 8;
constexpr const char* kSupported = "; supported are ByteLevel, Split and Digits, also in a Sequence";

// A regular expression that matches `text` itself.
std::string quoted(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       static_cast<unsigned char>(c) >= 0x80;
    pattern += plain ? std::string(1, c) : std::string("\\") + c;
  }
  return pattern;
}

SplitStep read_split(const JsonValue& split) {
  const JsonValue pattern = split.at("pattern");
  const JsonValue regex = pattern.get("Regex");
  const std::string text = regex.is_null() ? quoted(pattern.at("String").text()) : regex.text();
  const std::string behavior = split.at("behavior").text();
  const bool invert = split.flag("invert", false);
  if (behavior != "Isolated" && !(behavior == "Removed" && invert))
    split.refuse("the behavior '" + behavior + "'" + (invert ? " with invert" : "") +
                 " of Split is not supported; supported are Isolated, and Removed with invert");
  try {
    return {.pattern = std::make_shared<SplitPattern>(text, PatternSyntax::oniguruma),
            .keep_unmatched = behavior == "Isolated"};
  } catch (const DataError& error) {
    pattern.refuse(error.what());
  }
}

SplitStep read_digits(const JsonValue& digits) {
  const bool individual = digits.flag("individual_digits", false);
  return {.pattern = std::make_shared<SplitPattern>(individual ? R"(\p{N})" : R"(\p{N}+)",
                                                    PatternSyntax::oniguruma)};
}

SplitStep read_byte_level(const JsonValue& byte_level) {
  SplitStep step = gpt2_step();
  if (!byte_level.flag("use_regex", true)) step.pattern = nullptr;
  step.add_space = byte_level.flag("add_prefix_space", true);
  return step;
}

// `ended`: ByteLevel has been read, behind which nothing may come.
void read_steps(const JsonValue& value, int depth, std::vector<SplitStep>& steps, bool& ended) {
  const std::string type = value.at("type").text();
  if (depth > kMostNested)
    value.refuse("Sequences are nested more than " + std::to_string(kMostNested) + " times");
  if (type == "Sequence") {
    for (const Json& one : value.at("pretokenizers").array())
      read_steps({one, value.where()}, depth + 1, steps, ended);
    return;
  }
  if (ended) value.refuse("'" + type + "' comes behind ByteLevel, which must be the last");
  if (type == "ByteLevel") {
    steps.push_back(read_byte_level(value));
    ended = true;
  } else if (type == "Split") {
    steps.push_back(read_split(value));
  } else if (type == "Digits") {
    steps.push_back(read_digits(value));
  } else {
    value.refuse("the pre-tokenizer '" + type + "' is not supported" + kSupported);
  }
}

}  // namespace

SplitStep gpt2_step() {
  return {.pattern = std::make_shared<SplitPattern>(kGpt2Pattern, PatternSyntax::oniguruma)};
}

std::vector<SplitStep> read_pre_tokenizer(const JsonValue& pre_tokenizer) {
  std::vector<SplitStep> steps;
  bool ended = false;
  if (!pre_tokenizer.is_null()) read_steps(pre_tokenizer, 0, steps, ended);
  if (!ended) pre_tokenizer.refuse("there is no ByteLevel; only byte-level BPE is supported");
  return steps;
}

}  // namespace fsdp::data
