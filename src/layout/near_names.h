// Suggestions for a name that does not exist.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::detail {

// The up to `most` names of `known` that are nearest to `wanted`, nearest first, by edit distance (letters
// inserted, dropped or replaced); equally near ones in the order of `known`. No name twice, and not "".
std::vector<std::string> near_names(std::string_view wanted, const std::vector<std::string>& known,
                                    size_t most = 3);

}  // namespace fsdp::detail
