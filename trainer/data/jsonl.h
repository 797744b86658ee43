// Lines of a JSONL file as documents.
#pragma once

#include <string>
#include <string_view>

#include "trainer/data/texts.h"

namespace fsdp::data {

struct Example {
  std::string prompt;      // empty: none
  std::string completion;  // or the whole text
};

// The example in a line. Throws DataError, which begins with `where`, for a line that is no JSON object or
// does not have the keys that `options` ask for.
Example parse_example(std::string_view line, const std::string& where, const TextOptions& options);

}  // namespace fsdp::data
