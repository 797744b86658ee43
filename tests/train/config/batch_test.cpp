// How a global batch is cut into microbatches.
#include "app/config/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

namespace fsdp::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool is_power_of_two(int64_t value) { return (value & (value - 1)) == 0; }

TEST(Batch, GlobalBatchIsBatchSizeTimesAccumulationTimesRanks) {
  EXPECT_EQ(plan_batch({.batch_size = 2, .accumulation = 4, .ranks = 8}).plan,
            (BatchPlan{.batch_size = 2, .accumulation = 4, .global_batch_size = 64, .microbatches = 32}));
}

TEST(Batch, AccumulationFollowsFromTheGlobalBatch) {
  for (const int64_t ranks : {1, 2, 3, 4, 6, 12}) {
    const BatchResult result =
        plan_batch({.batch_size = 2, .accumulation = 7, .global_batch_size = 24, .ranks = ranks});
    EXPECT_EQ(result.problem, "");
    EXPECT_EQ(result.plan.accumulation, 12 / ranks);
    EXPECT_EQ(result.plan.microbatches, 12);
  }
}

TEST(Batch, RefusesExactlyWhatDoesNotFit) {
  for (int64_t size = 1; size <= 6; ++size)
    for (int64_t ranks = 1; ranks <= 9; ++ranks)
      for (int64_t global = 1; global <= 60; ++global)
        for (const bool reproducible : {false, true}) {
          const BatchResult result = plan_batch({.batch_size = size,
                                                 .global_batch_size = global,
                                                 .ranks = ranks,
                                                 .reproducible = reproducible});
          const bool fits = global % (size * ranks) == 0 && (!reproducible || is_power_of_two(global / size));
          EXPECT_EQ(result.problem.empty(), fits)
              << size << " " << ranks << " " << global << " " << result.problem;
          if (!fits) continue;
          EXPECT_EQ(result.plan.batch_size * result.plan.accumulation * ranks, global);
          EXPECT_EQ(result.plan.microbatches, result.plan.accumulation * ranks);
        }
}

// "a global_batch_size of 4 or 8; a batch_size of 3 or 1; 2 or 4 ranks" -> the numbers of one part.
std::vector<int64_t> numbers(const std::string& problem, const std::string& before,
                             const std::string& after) {
  std::smatch found;
  std::vector<int64_t> values;
  if (!std::regex_search(problem, found, std::regex(before + "([0-9, or]+)" + after))) return values;
  const std::string list = found[1];
  const std::regex number("[0-9]+");
  for (std::sregex_iterator at(list.begin(), list.end(), number), end; at != end; ++at)
    values.push_back(std::stoll(at->str()));
  return values;
}

TEST(Batch, EveryValueThatIsSuggestedFits) {
  int suggestions = 0;
  for (int64_t size = 1; size <= 6; ++size)
    for (int64_t ranks = 1; ranks <= 8; ++ranks)
      for (int64_t global = 1; global <= 48; ++global)
        for (const bool reproducible : {false, true}) {
          const BatchRequest asked{
              .batch_size = size, .global_batch_size = global, .ranks = ranks, .reproducible = reproducible};
          const std::string problem = plan_batch(asked).problem;
          const auto fits = [&](BatchRequest request) {
            ++suggestions;
            EXPECT_EQ(plan_batch(request).problem, "") << problem;
          };
          BatchRequest request = asked;
          for (const int64_t value : numbers(problem, "These would fit: a global_batch_size of ", "")) {
            request.global_batch_size = value;
            fits(request);
          }
          request = asked;
          for (const int64_t value : numbers(problem, "a batch_size of ", "")) {
            request.batch_size = value;
            fits(request);
          }
          request = asked;
          for (const int64_t value : numbers(problem, "; ", " ranks")) {
            request.ranks = value;
            fits(request);
          }
        }
  EXPECT_GT(suggestions, 5000);
}

TEST(Batch, SizesThatFitAreAllOfThem) {
  EXPECT_THAT(batch_sizes_that_fit(24, 2, false), ElementsAre(12, 6, 4, 3, 2, 1));
  EXPECT_THAT(batch_sizes_that_fit(24, 2, true), ElementsAre(12, 6, 3));
  EXPECT_THAT(batch_sizes_that_fit(24, 5, false), ElementsAre());
  EXPECT_THAT(batch_sizes_that_fit(36, 1, false), ElementsAre(36, 18, 12, 9, 6, 4, 3, 2, 1));
}

TEST(Batch, ProblemsSayWhatWouldFit) {
  EXPECT_EQ(plan_batch({.batch_size = 2, .global_batch_size = 10, .ranks = 2}).problem,
            "found a global_batch_size of 10, expected a multiple of 4 (batch_size 2 x 2 ranks). These would "
            "fit: a "
            "global_batch_size of 8 or 12; a batch_size of 5 or 1; 1 or 5 ranks");
  EXPECT_EQ(plan_batch({.batch_size = 2, .global_batch_size = 12, .ranks = 2, .reproducible = true}).problem,
            "found 6 microbatches (global_batch_size 12 / batch_size 2), expected a power of two, as "
            "reproducible mode "
            "needs. These would fit: a global_batch_size of 8 or 16; a batch_size of 6 or 3");
  EXPECT_EQ(plan_batch({.ranks = 3, .reproducible = true}).problem,
            "found 3 ranks, expected a power of two, as reproducible mode needs: 2 or 4");
}

TEST(Batch, SizesBeyondAllReason) {
  EXPECT_THAT(plan_batch({.batch_size = 65536, .accumulation = 65536, .ranks = 102400000}).problem,
              HasSubstr("expected at most 1000000000"));
  EXPECT_EQ(plan_batch({.batch_size = 1, .accumulation = 1000000000}).problem, "");
  EXPECT_NE(plan_batch({.batch_size = 1, .accumulation = 1000000001}).problem, "");
}

}  // namespace
}  // namespace fsdp::config
