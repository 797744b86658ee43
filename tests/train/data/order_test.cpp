// The order of samples: every sample of an epoch once, the same for every number of ranks, and synthetic
// data.
#include "trainer/data/order.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "support.h"
#include "trainer/data/synthetic.h"

namespace fsdp::data {

namespace {

std::vector<uint64_t> epoch_of(const Order& order, uint64_t epoch) {
  std::vector<uint64_t> samples;
  for (uint64_t step = 0; step < order.steps_per_epoch(); ++step)
    for (uint64_t i = 0; i < order.global_batch(); ++i)
      samples.push_back(order.sample(order.step({epoch, step}), i));
  return samples;
}

// Samples of a step as `ranks` ranks train on them: [microbatch of the step][row].
std::vector<std::vector<uint64_t>> microbatches(const Order& order, uint64_t ranks, uint64_t batch_size,
                                                uint64_t step) {
  std::vector<std::vector<uint64_t>> all(order.global_batch() / batch_size);
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    const Share share{.rank = rank, .ranks = ranks, .batch_size = batch_size};
    share.check(order.global_batch());
    for (uint64_t number = 0; number < share.microbatches(order.global_batch()); ++number)
      for (uint64_t row = 0; row < batch_size; ++row)
        all.at(number * ranks + rank).push_back(order.sample(step, share.index(number, row)));
  }
  return all;
}

}  // namespace

TEST(Permutation, TakesEveryValueOnce) {
  for (const uint64_t size : {1U, 2U, 3U, 63U, 64U, 65U, 1000U, 4096U, 4097U, 70001U}) {
    const Permutation permutation(size, 7);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t value = permutation(i);
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]) << size << " " << value;
      seen[value] = true;
    }
  }
}

TEST(Permutation, HoldsForSizesBeyond32Bits) {
  for (const uint64_t size : {(uint64_t{1} << 33) + 1, (uint64_t{1} << 62) + 1, uint64_t{1} << 63}) {
    const Permutation permutation(size, 3);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t value = permutation(size - 1 - i);
      EXPECT_LT(value, size);
      seen.insert(value);
    }
    EXPECT_EQ(seen.size(), 1000U);
    EXPECT_GT(*seen.rbegin(), size / 2);
  }
}

// The orders of three samples are all equally likely: 6 times 200 of 1,200 keys, give or take 6 deviations.
TEST(Permutation, IsFairForFewSamples) {
  std::map<std::vector<uint64_t>, int> counts;
  for (uint64_t key = 0; key < 1200; ++key) {
    const Permutation permutation(3, key);
    ++counts[{permutation(0), permutation(1), permutation(2)}];
  }
  EXPECT_EQ(counts.size(), 6U);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 200, 80);
}

TEST(Order, UsesEverySampleOfAnEpochOnce) {
  const Order order(1000, 8, 5);
  EXPECT_EQ(order.steps_per_epoch(), 125U);
  for (const uint64_t epoch : {0U, 1U, 7U}) {
    std::vector<uint64_t> samples = epoch_of(order, epoch);
    std::sort(samples.begin(), samples.end());
    std::vector<uint64_t> all(1000);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(samples, all);
  }
}

TEST(Order, DropsATailShorterThanAGlobalBatch) {
  const Order order(1003, 8, 5);
  EXPECT_EQ(order.steps_per_epoch(), 125U);
  EXPECT_EQ(order.dropped_per_epoch(), 3U);
  const auto dropped = [&](uint64_t epoch) {
    const std::vector<uint64_t> used = epoch_of(order, epoch);
    EXPECT_EQ(std::set<uint64_t>(used.begin(), used.end()).size(), 1000U);
    std::set<uint64_t> left;
    for (uint64_t i = 0; i < 1003; ++i) left.insert(i);
    for (const uint64_t i : used) left.erase(i);
    return left;
  };
  EXPECT_EQ(dropped(0).size(), 3U);
  EXPECT_NE(dropped(0), dropped(1));
}

TEST(Order, FollowsFromSeedAndEpochOnly) {
  const Order one(500, 4, 11), same(500, 4, 11), other(500, 4, 12);
  EXPECT_EQ(epoch_of(one, 3), epoch_of(same, 3));
  EXPECT_NE(epoch_of(one, 3), epoch_of(other, 3));
  EXPECT_NE(epoch_of(one, 3), epoch_of(one, 4));
  // The order is part of what a checkpoint resumes: it must never change.
  const std::vector<uint64_t> epoch = epoch_of(Order(10, 10, 0), 0);
  EXPECT_THAT(epoch, ElementsAre(0, 6, 5, 4, 9, 7, 2, 1, 3, 8));
}

TEST(Order, TheGlobalBatchSizeDoesNotChangeTheOrder) {
  EXPECT_EQ(epoch_of(Order(96, 8, 1), 2), epoch_of(Order(96, 3, 1), 2));
}

TEST(Order, WithoutShuffleIsThatOfTheData) {
  const Order order(10, 3, 5, false);
  EXPECT_THAT(epoch_of(order, 1), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(Order, IsTheSameForEveryNumberOfRanks) {
  const Order order(300, 48, 2);
  for (uint64_t step : {0U, 5U, 6U, 13U}) {
    const auto alone = microbatches(order, 1, 2, step);
    for (const uint64_t ranks : {2U, 3U, 4U, 6U, 8U, 24U})
      EXPECT_EQ(microbatches(order, ranks, 2, step), alone);
    std::set<uint64_t> seen;
    for (const auto& one : alone) seen.insert(one.begin(), one.end());
    EXPECT_EQ(seen.size(), 48U);  // disjoint
  }
}

TEST(Order, PositionsAndStepsAreInverse) {
  const Order order(1003, 8, 5);
  EXPECT_EQ(order.position(124), (Position{0, 124}));
  EXPECT_EQ(order.position(125), (Position{1, 0}));
  for (const uint64_t step : {0U, 124U, 125U, 99999U}) EXPECT_EQ(order.step(order.position(step)), step);
}

TEST(Order, RefusesDataForLessThanOneBatch) {
  EXPECT_THAT(refusal([] { Order(7, 8, 0); }), AllOf(HasSubstr("7 samples"), HasSubstr("global batch of 8")));
  EXPECT_THAT(refusal([] { Order(7, 0, 0); }), HasSubstr("at least 1"));
  EXPECT_EQ(refusal([] { Order(8, 8, 0); }), "no error");
}

TEST(Share, NamesTheBatchSizesThatFit) {
  EXPECT_EQ(refusal([] { (Share{.rank = 0, .ranks = 3, .batch_size = 4}.check(24)); }), "no error");
  EXPECT_THAT(refusal([] { (Share{.rank = 0, .ranks = 3, .batch_size = 4}.check(18)); }),
              AllOf(HasSubstr("18 does not divide into batch_size 4 x 3 ranks"),
                    HasSubstr("batch_size may be 1, 2, 3, 6")));
  EXPECT_THAT(refusal([] { (Share{.rank = 0, .ranks = 5, .batch_size = 1}.check(18)); }),
              HasSubstr("No batch_size fits"));
  EXPECT_THAT(refusal([] { (Share{.rank = 3, .ranks = 3}.check(18)); }), HasSubstr("rank 3 of 3"));
  EXPECT_NE(refusal([] { (Share{.rank = 0, .ranks = 1, .batch_size = 0}.check(18)); }), "no error");
}

TEST(SyntheticTokens, AreAChainOfFourSuccessors) {
  const std::vector<int32_t> tokens = synthetic_tokens(200000, 64, 9);
  std::map<int32_t, std::map<int32_t, int>> successors;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    ASSERT_TRUE(tokens[i] >= 0 && tokens[i] < 64);
    ++successors[tokens[i]][tokens[i + 1]];
  }
  double entropy = 0;
  for (const auto& [token, next] : successors) {
    EXPECT_LE(next.size(), 4U);
    int sum = 0;
    for (const auto& one : next) sum += one.second;
    for (const auto& one : next) entropy -= one.second * std::log(static_cast<double>(one.second) / sum);
  }
  // Some successors coincide, which takes a little off.
  EXPECT_NEAR(entropy / 200000, kSyntheticLoss, 0.1);
  EXPECT_LE(entropy / 200000, kSyntheticLoss + 0.01);
}

TEST(SyntheticTokens, FollowFromTheSeed) {
  EXPECT_EQ(synthetic_tokens(100, 64, 9), synthetic_tokens(100, 64, 9));
  EXPECT_NE(synthetic_tokens(100, 64, 9), synthetic_tokens(100, 64, 10));
  const std::vector<int32_t> longer = synthetic_tokens(200, 64, 9);
  EXPECT_EQ(synthetic_tokens(100, 64, 9), std::vector<int32_t>(longer.begin(), longer.begin() + 100));
  EXPECT_THAT(refusal([] { synthetic_tokens(10, 7, 0); }), HasSubstr("at least 8"));
  EXPECT_THAT(refusal([] { synthetic_tokens(-1, 8, 0); }), HasSubstr("-1 synthetic tokens"));
}

}  // namespace fsdp::data
