// Plans in words, for tests: "0 1 | 1 0" is a trace, "f0: gather 0@0, use 0@0" a moment of a plan.
#pragma once

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace fsdp::testing {

inline constexpr int64_t kBlock = 256;

// Units used in forward, then in backward; a point is the end of a backward. Neighbours are one run.
std::vector<detail::Moment> moments_of(const std::string& text);
std::vector<detail::Moment> moments_of(const std::vector<detail::Access>& trace);

std::string words(const std::vector<detail::Instruction>& list);
// One line per moment and one for the end; offsets count blocks of 256 bytes.
std::vector<std::string> words(const std::vector<detail::Moment>& moments);
std::vector<std::string> words(const detail::Plan& plan);

// Slots of so many blocks.
std::vector<detail::UnitNeed> units_of(const std::vector<int64_t>& blocks,
                                       const std::set<detail::UnitId>& kept = {});

// Lists of some units, of any units in any order.
detail::PrefetchLists random_lists(std::mt19937& random, size_t units);

}  // namespace fsdp::testing
