#include "layout/near_names.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using detail::near_names;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(NearNames, NearestFirst) {
  EXPECT_THAT(near_names("h.0.atn", {"wte", "h.0.mlp", "h.1.attn", "h.0.attn", "h.0"}),
              ElementsAre("h.0.attn", "h.1.attn", "h.0.mlp"));
}

TEST(NearNames, EquallyNearOnesKeepTheirOrder) {
  EXPECT_THAT(near_names("a", {"z", "y", "b"}, 2), ElementsAre("z", "y"));
}

TEST(NearNames, InsertedDroppedAndReplacedLettersCountOne) {
  EXPECT_THAT(near_names("head", {"hexxd", "hcad", "heead", "hed", "head"}, 4),
              ElementsAre("head", "hcad", "heead", "hed"));
}

TEST(NearNames, NoNameTwiceAndNoneWithoutLetters) {
  EXPECT_THAT(near_names("p", {"", "q", "q", "quite"}), ElementsAre("q", "quite"));
}

TEST(NearNames, NothingKnownOrWantedGivesNothing) {
  EXPECT_THAT(near_names("a", {}), IsEmpty());
  EXPECT_THAT(near_names("a", {"b"}, 0), IsEmpty());
  EXPECT_THAT(near_names("", {"long", "b"}), ElementsAre("b", "long"));
}

// The definition itself, exponential.
size_t distance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const auto rest_a = a.substr(1), rest_b = b.substr(1);
  if (a[0] == b[0]) return distance(rest_a, rest_b);
  return 1 + std::min({distance(rest_a, b), distance(a, rest_b), distance(rest_a, rest_b)});
}

TEST(NearNamesProperty, WhatIsLeftOutIsNoNearer) {
  std::mt19937 random(seed());
  const auto word = [&] {
    std::string text(1 + random() % 5, ' ');
    for (char& letter : text) letter = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = repeats(100, 2000); round > 0; --round) {
    const std::string wanted = word();
    std::vector<std::string> known(random() % 12);
    for (std::string& name : known) name = word();
    const auto nearest = near_names(wanted, known);
    std::vector<size_t> found, all;
    for (const std::string& name : nearest) found.push_back(distance(wanted, name));
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    for (const std::string& name : known) all.push_back(distance(wanted, name));
    std::sort(all.begin(), all.end());
    all.resize(std::min<size_t>(3, all.size()));
    ASSERT_EQ(found, all) << wanted;
  }
}

}  // namespace
}  // namespace fsdp::testing
