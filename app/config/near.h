// "Did you mean" for a name that does not exist.
#pragma once

#include <string>
#include <vector>

namespace fsdp::config {

// Letters inserted, dropped, replaced or swapped with their neighbour; case does not count.
size_t edit_distance(const std::string& first, const std::string& second);

// The name of `known` that is nearest to `wanted`; empty if none is near.
std::string nearest(const std::string& wanted, const std::vector<std::string>& known);

// ", did you mean 'x'?"; empty if no name is near.
std::string did_you_mean(const std::string& wanted, const std::vector<std::string>& known);

// "a, b or c".
std::string one_of(const std::vector<std::string>& words);

}  // namespace fsdp::config
