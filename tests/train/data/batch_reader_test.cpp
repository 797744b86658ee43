// Batches of steps, read ahead on a thread.
#include "trainer/data/batch_reader.h"

#include <atomic>
#include <chrono>
#include <future>
#include <numeric>

#include "support.h"

namespace fsdp::data {

namespace {

using std::chrono::milliseconds;

// 0, 1, 2, ... Reading may be held, and fails from token `broken` on.
class CountedTokens final : public TokenSource {
 public:
  explicit CountedTokens(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  void read(int64_t begin, std::span<int64_t> out) const override {
    check_range("numbers", begin, out.size(), size_);
    ++reads;
    while (held) std::this_thread::sleep_for(milliseconds(1));
    if (begin + std::ssize(out) > broken)
      throw DataError("numbers.bin:" + std::to_string(begin) + ": broken");
    std::iota(out.begin(), out.end(), begin);
  }
  mutable std::atomic<int> reads = 0;
  std::atomic<bool> held = false;
  std::atomic<int64_t> broken = INT64_MAX;

 private:
  int64_t size_;
};

struct Reading {
  explicit Reading(int64_t tokens = 1 + 4 * 64, int64_t length = 4)
      : source(std::make_shared<CountedTokens>(tokens)),
        dataset(std::make_shared<Dataset>(std::vector<std::shared_ptr<const TokenSource>>{source}, length)) {}
  std::shared_ptr<CountedTokens> source;
  std::shared_ptr<const Dataset> dataset;
};

std::vector<int64_t> tokens_of(const StepBatches& batches) {
  std::vector<int64_t> all;
  for (const Batch& batch : batches) all.insert(all.end(), batch.tokens.begin(), batch.tokens.end());
  return all;
}

template <class Condition>
bool wait_until(const Condition& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(1));
  return condition();
}

}  // namespace

TEST(ReadStep, FillsRowsAndTargets) {
  const Reading reading;
  const Order order(64, 8, 0, false);
  const StepBatches batches = read_step(*reading.dataset, order, {.rank = 1, .ranks = 2, .batch_size = 2}, 1);
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[0].rows, 2);
  EXPECT_EQ(batches[0].length, 4);
  EXPECT_EQ(batches[0].counted, 8);
  // Samples 10, 11 and 14, 15: microbatches 1 and 3 of step 1.
  EXPECT_THAT(batches[0].tokens, ElementsAre(40, 41, 42, 43, 44, 45, 46, 47));
  EXPECT_THAT(batches[0].targets, ElementsAre(41, 42, 43, 44, 45, 46, 47, 48));
  EXPECT_THAT(batches[1].tokens, ElementsAre(56, 57, 58, 59, 60, 61, 62, 63));
}

TEST(ReadStep, CountsTargetsOfTheLoss) {
  auto masked = std::make_shared<MemoryTokens>();
  masked->add(std::vector<int32_t>{0, 1, 2}, false);
  masked->add(std::vector<int32_t>{3, 4}, true);
  const Dataset dataset({masked}, 2);
  const StepBatches batches = read_step(dataset, Order(2, 2, 0, false), {.batch_size = 1}, 0);
  EXPECT_EQ(batches.at(0).counted, 0);
  EXPECT_EQ(batches.at(1).counted, 2);
}

TEST(BatchReader, GivesEveryStepInOrder) {
  const Reading reading;
  const Order order(64, 6, 3);
  const Share share{.rank = 1, .ranks = 3, .batch_size = 2};
  for (const size_t depth : {1U, 2U, 7U}) {
    BatchReader reader(reading.dataset, order, share, 0, depth);
    for (uint64_t step = 0; step < 35; ++step)  // through three epochs
      ASSERT_EQ(tokens_of(reader.read(step)), tokens_of(read_step(*reading.dataset, order, share, step)))
          << step;
  }
}

// A resumed run begins at the step after the checkpoint's, not where the thread was.
TEST(BatchReader, ResumesAtAnyStepWhileItReadsAhead) {
  const Reading reading;
  const Order order(64, 4, 3);
  const Share share{.batch_size = 2};
  BatchReader reader(reading.dataset, order, share, 0, 3);
  for (const uint64_t step : {0U, 1U, 2U, 9U, 10U, 3U, 3U, 0U, 15U, 16U, 1000000U, 4U})
    ASSERT_EQ(tokens_of(reader.read(step)), tokens_of(read_step(*reading.dataset, order, share, step)))
        << step;
  BatchReader resumed(reading.dataset, order, share, 17, 3);
  EXPECT_EQ(tokens_of(resumed.read(17)), tokens_of(read_step(*reading.dataset, order, share, 17)));
}

TEST(BatchReader, ReadsAheadAndNotFarther) {
  const Reading reading;
  BatchReader reader(reading.dataset, Order(64, 1, 0), {}, 0, 3);
  EXPECT_TRUE(wait_until([&] { return reading.source->reads == 6; }));  // two reads per sample
  reader.read(0);
  EXPECT_TRUE(wait_until([&] { return reading.source->reads == 8; }));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(reading.source->reads, 8);
}

TEST(BatchReader, AnErrorReachesTheStepThatNeedsIt) {
  const Reading reading;
  const Order order(64, 8, 0, false);
  reading.source->broken = 100;  // in step 3
  BatchReader reader(reading.dataset, order, {.batch_size = 8}, 0, 4);
  for (uint64_t step = 0; step < 3; ++step) reader.read(step);
  EXPECT_THAT(refusal([&] { reader.read(3); }), HasSubstr("numbers.bin:"));
  EXPECT_THAT(refusal([&] { reader.read(4); }), HasSubstr("numbers.bin:"));
  EXPECT_EQ(tokens_of(reader.read(1)).front(), 32);
  reading.source->broken = INT64_MAX;
  EXPECT_EQ(tokens_of(reader.read(3)).front(), 96);
}

TEST(BatchReader, EndsWhileStepsAreUnread) {
  const Reading reading;
  const auto reader = std::make_unique<BatchReader>(reading.dataset, Order(64, 1, 0), Share{}, 0, 2);
  EXPECT_TRUE(wait_until([&] { return reading.source->reads == 4; }));  // the thread waits for room
}

TEST(BatchReader, EndsAfterTheReadInProgress) {
  const Reading reading;
  reading.source->held = true;
  auto reader = std::make_unique<BatchReader>(reading.dataset, Order(64, 1, 0), Share{});
  ASSERT_TRUE(wait_until([&] { return reading.source->reads == 1; }));
  auto ended = std::async(std::launch::async, [&] { reader.reset(); });
  EXPECT_EQ(ended.wait_for(milliseconds(20)), std::future_status::timeout);
  reading.source->held = false;
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

TEST(BatchReader, RefusesPartsThatDoNotFit) {
  const Reading reading;
  EXPECT_THAT(refusal([&] { BatchReader(reading.dataset, Order(63, 1, 0), {}); }),
              AllOf(HasSubstr("of 63 samples"), HasSubstr("has 64")));
  EXPECT_THAT(refusal([&] { BatchReader(reading.dataset, Order(64, 4, 0), {.ranks = 3}); }),
              HasSubstr("does not divide"));
  EXPECT_THAT(refusal([&] { BatchReader(reading.dataset, Order(64, 4, 0), {}, 0, 0); }),
              HasSubstr("at least 1"));
}

}  // namespace fsdp::data
