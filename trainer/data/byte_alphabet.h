// The characters that stand for bytes in byte-level vocabularies, such as U+0120 for a space.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

// The bytes that a token of vocab.json, merges.txt or tokenizer.json stands for. nullopt: a character of it
// stands for no byte.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace fsdp::data
