#include "trainer/doctor/links.h"

#include <gmock/gmock.h>

#include <set>

namespace fsdp::doctor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// All pairs of `count` hosts, both ways, at 1 GB/s.
std::vector<Link> even_links(int count) {
  std::vector<Link> links;
  for (int a = 0; a < count; ++a)
    for (int b = 0; b < count; ++b)
      if (a != b)
        links.push_back({.from = "host" + std::to_string(a),
                         .to = "host" + std::to_string(b),
                         .bytes_per_second = 1e9,
                         .latency = 50e-6});
  return links;
}

TEST(Links, EveryPairIsMeasuredOnceAndPairsOfARoundAreDisjoint) {
  for (int count = 1; count <= 33; ++count) {
    std::set<std::pair<int, int>> seen;
    for (const auto& round : pair_rounds(count)) {
      std::set<int> busy;
      for (const auto& [a, b] : round) {
        EXPECT_LT(a, b);
        EXPECT_LT(b, count);
        EXPECT_TRUE(seen.insert({a, b}).second) << count << ": " << a << " " << b;
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second) << count << ": " << a << " " << b;
      }
      if (count <= kAlone) {
        EXPECT_EQ(round.size(), 1U);
      }
    }
    EXPECT_EQ(static_cast<int>(seen.size()), count * (count - 1) / 2) << count;
  }
}

TEST(Links, ManyHostsTakeAsFewRoundsAsPossible) {
  EXPECT_EQ(pair_rounds(32).size(), 31U);
  EXPECT_EQ(pair_rounds(33).size(), 33U);
}

TEST(Links, EvenLinksAreFineAndTheSlowestIsNamed) {
  std::vector<Link> links = even_links(3);
  links[4].bytes_per_second = 0.9e9;  // host2 -> host0
  const Finding found = judge_links(links);
  EXPECT_EQ(found.level, Level::ok);
  EXPECT_THAT(found.text, HasSubstr("host2 -> host0: 900 MB/s, 50 us"));
  EXPECT_EQ(found.advice, "");
}

TEST(Links, ALinkBelowHalfTheMedianGetsAdvice) {
  std::vector<Link> links = even_links(3);
  links[4].bytes_per_second = 0.4e9;
  const Finding found = judge_links(links);
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_THAT(found.text, AllOf(HasSubstr("host2 -> host0: 400 MB/s"), HasSubstr("the median is 1 GB/s")));
  EXPECT_THAT(found.advice, AllOf(HasSubstr("On host2"), HasSubstr("tc qdisc show"), HasSubstr("ethtool")));
}

TEST(Links, OfTwoHostsOneDirectionIsComparedWithTheOther) {
  std::vector<Link> links = even_links(2);
  links[1].bytes_per_second = 0.05e9;
  EXPECT_EQ(judge_links(links).level, Level::warning);
  EXPECT_THAT(judge_links(links).text, HasSubstr("the other direction has 1 GB/s"));
  links[1].bytes_per_second = 0.5e9;
  EXPECT_EQ(judge_links(links).level, Level::ok);
}

TEST(Links, ClocksThatDifferByMoreThanTheMeasurementCanSay) {
  EXPECT_EQ(judge_clock("host1", 0.4, 1e-4).level, Level::ok);
  EXPECT_EQ(judge_clock("host1", -0.7, 0.3).level, Level::ok);
  const Finding found = judge_clock("host1", -3.5, 1e-4);
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_THAT(found.text, HasSubstr("host1 is 3.5e+03 ms behind"));
  EXPECT_THAT(found.advice, HasSubstr("chronyd"));
}

TEST(Links, SurviveJson) {
  const Link link{.from = "a", .to = "b", .bytes_per_second = 1.5e9, .latency = 2e-5};
  const Link again = link_from(to_json(link));
  EXPECT_EQ(again.from + again.to, "ab");
  EXPECT_EQ(again.bytes_per_second, link.bytes_per_second);
  EXPECT_EQ(again.latency, link.latency);
  EXPECT_TRUE(findings_from(nlohmann::json::parse("[1, \"x\", null]")).empty());
}

}  // namespace
}  // namespace fsdp::doctor
