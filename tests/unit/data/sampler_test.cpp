#include <fsdp/sampler.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <numeric>
#include <set>
#include <sstream>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Indices = std::vector<size_t>;

// What is left of the epoch, in batches of `batch_size`.
Indices rest_of(Sampler& sampler, size_t batch_size = 3) {
  Indices all;
  while (const auto batch = sampler.next(batch_size)) {
    EXPECT_FALSE(batch->empty());
    EXPECT_LE(batch->size(), batch_size);
    all.insert(all.end(), batch->begin(), batch->end());
  }
  return all;
}

std::vector<Indices> of_all_ranks(int ranks, size_t dataset_size, const SamplerOptions& options,
                                  size_t epoch = 0) {
  std::vector<Indices> shares;
  for (int rank = 0; rank < ranks; ++rank) {
    Sampler sampler(rank, ranks, dataset_size, options);
    sampler.set_epoch(epoch);
    shares.push_back(rest_of(sampler));
    EXPECT_EQ(shares.back().size(), sampler.size());
  }
  return shares;
}

// How often each index occurs.
std::vector<int> counts(const std::vector<Indices>& shares, size_t dataset_size) {
  std::vector<int> found(dataset_size);
  for (const Indices& share : shares)
    for (const size_t index : share) ++found.at(index);
  return found;
}

TEST(Sampler, EveryIndexOnceWhereTheSizeDivides) {
  for (const bool shuffle : {false, true})
    for (const bool drop_last : {false, true})
      for (const int ranks : {1, 2, 3, 4}) {
        const auto found = counts(of_all_ranks(ranks, 24, {.shuffle = shuffle, .drop_last = drop_last}), 24);
        EXPECT_EQ(found, std::vector<int>(24, 1)) << ranks << " ranks";
      }
}

TEST(Sampler, TheRestIsFilledUpFromTheBeginningOrDropped) {
  for (const bool shuffle : {false, true})
    for (const int ranks : {2, 3, 4, 8})
      for (const size_t size : {1U, 2U, 5U, 9U, 23U, 25U}) {
        SCOPED_TRACE(std::to_string(size) + " samples on " + std::to_string(ranks) + " ranks");
        const auto all = of_all_ranks(ranks, size, {.shuffle = shuffle});
        const auto kept = of_all_ranks(ranks, size, {.shuffle = shuffle, .drop_last = true});
        const auto w = static_cast<size_t>(ranks);
        for (const Indices& share : all) EXPECT_EQ(share.size(), (size + w - 1) / w);
        for (const Indices& share : kept) EXPECT_EQ(share.size(), size / w);
        size_t twice = 0, once = 0;
        for (const int n : counts(all, size)) {
          EXPECT_GE(n, 1);
          twice += static_cast<size_t>(n - 1);
        }
        EXPECT_EQ(twice, (size + w - 1) / w * w - size);
        for (const int n : counts(kept, size)) {
          EXPECT_LE(n, 1);
          once += static_cast<size_t>(n);
        }
        EXPECT_EQ(once, size / w * w);
      }
}

TEST(Sampler, WithoutShufflingRanksTakeTurns) {
  EXPECT_THAT(of_all_ranks(3, 8, {.shuffle = false}),
              ElementsAre(ElementsAre(0, 3, 6), ElementsAre(1, 4, 7), ElementsAre(2, 5, 0)));
  EXPECT_THAT(of_all_ranks(3, 8, {.shuffle = false, .drop_last = true}),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
}

// The order belongs to checkpoints and papers: it is the same on every platform, for ever.
TEST(Sampler, TheOrderIsFixed) {
  EXPECT_THAT(of_all_ranks(1, 10, {.seed = 0}).front(), ElementsAre(6, 1, 2, 4, 7, 5, 3, 0, 9, 8));
  EXPECT_THAT(of_all_ranks(1, 10, {.seed = 0}, 1).front(), ElementsAre(4, 6, 8, 9, 3, 5, 7, 2, 0, 1));
  EXPECT_THAT(of_all_ranks(1, 10, {.seed = 1}).front(), ElementsAre(5, 0, 8, 7, 3, 1, 9, 6, 4, 2));
}

TEST(Sampler, TheOrderIsThatOfOneRankDealtOut) {
  const Indices whole = of_all_ranks(1, 20, {.seed = 9}).front();
  const auto shares = of_all_ranks(4, 20, {.seed = 9});
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(shares[i % 4][i / 4], whole[i]);
}

TEST(Sampler, BatchSizesDoNotMatter) {
  Sampler small(1, 2, 31), large(1, 2, 31);
  EXPECT_EQ(rest_of(small, 1), rest_of(large, 100));
}

TEST(Sampler, EveryEpochHasItsOwnOrder) {
  std::set<Indices> seen;
  Sampler sampler(0, 2, 40);
  for (size_t epoch = 0; epoch < 10; ++epoch) {
    sampler.reset();
    EXPECT_EQ(sampler.epoch(), epoch);
    const Indices share = rest_of(sampler);
    EXPECT_TRUE(seen.insert(share).second) << "epoch " << epoch << " is as one before";
    EXPECT_EQ(share, of_all_ranks(2, 40, {}, epoch).front());
  }
  EXPECT_NE(of_all_ranks(2, 40, {.seed = 1}).front(), of_all_ranks(2, 40, {.seed = 2}).front());
  sampler.set_epoch(3);
  EXPECT_EQ(rest_of(sampler), of_all_ranks(2, 40, {}, 3).front());
}

// Of 6 samples, each of the 720 orders is as likely as the next: by position, each index a sixth of the time.
TEST(Sampler, ShufflesEvenly) {
  constexpr int kEpochs = 6000;
  std::vector<std::vector<int>> found(6, std::vector<int>(6));
  Sampler sampler(0, 1, 6);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(static_cast<size_t>(epoch));
    const Indices order = rest_of(sampler);
    for (size_t i = 0; i < 6; ++i) ++found[i][order[i]];
  }
  // Binomial: 1000 expected, standard deviation 29; five of them.
  for (const auto& row : found)
    for (const int n : row) EXPECT_NEAR(n, kEpochs / 6, 145);
}

TEST(Sampler, ResetBeforeTheFirstIndexDoesNotSkipAnEpoch) {
  Sampler sampler(0, 1, 5);
  sampler.reset();
  sampler.reset();
  EXPECT_EQ(sampler.epoch(), 0U);
  sampler.next(1);
  sampler.reset();
  EXPECT_EQ(sampler.epoch(), 1U);
  EXPECT_EQ(sampler.taken(), 0U);
}

TEST(Sampler, AnotherSize) {
  Sampler sampler(1, 2, 10, {.shuffle = false});
  sampler.reset(6);
  EXPECT_EQ(sampler.size(), 3U);
  EXPECT_THAT(rest_of(sampler), ElementsAre(1, 3, 5));
}

TEST(Sampler, NothingFromNothing) {
  Sampler empty(0, 2, 0), dropped(0, 4, 3, {.drop_last = true});
  EXPECT_EQ(empty.next(4), std::nullopt);
  EXPECT_EQ(dropped.next(4), std::nullopt);
}

std::string saved(const Sampler& sampler) {
  torch::serialize::OutputArchive archive;
  sampler.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

void restore(Sampler& sampler, const std::string& bytes) {
  std::istringstream in(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  sampler.load(archive);
}

TEST(Sampler, ResumesAtTheNextIndex) {
  for (const size_t taken : {0U, 1U, 7U, 15U, 16U}) {
    SCOPED_TRACE(std::to_string(taken) + " taken");
    Sampler before(1, 3, 47, {.seed = 4});
    before.reset();
    rest_of(before);
    before.reset();
    if (taken > 0) before.next(taken);
    const std::string bytes = saved(before);

    Sampler after(1, 3, 47, {.seed = 4});
    restore(after, bytes);
    EXPECT_EQ(after.epoch(), 1U);
    EXPECT_EQ(after.taken(), taken);
    after.reset();                               // the loader's
    if (taken == before.size()) before.reset();  // an epoch that was over is not begun again
    EXPECT_EQ(rest_of(after), rest_of(before));
    before.reset();
    after.reset();
    EXPECT_EQ(after.epoch(), before.epoch());
    EXPECT_EQ(rest_of(after), rest_of(before));
  }
}

// What `ranks` ranks take from where `state` stands to the end of the epoch, in the order of the dataset.
Indices taken_by(int ranks, size_t size, const SamplerState& state) {
  std::vector<Indices> shares;
  for (int rank = 0; rank < ranks; ++rank) {
    Sampler sampler(rank, ranks, size, state.options);
    sampler.load_state_dict(state);
    sampler.reset();
    shares.push_back(sampler.epoch() == state.epoch ? rest_of(sampler) : Indices{});
  }
  Indices dealt;
  for (size_t i = 0; i < shares.front().size(); ++i)
    for (const Indices& share : shares) dealt.push_back(share.at(i));
  return dealt;
}

TEST(Sampler, AnyNumberOfRanksGoesOnWhereAnotherStopped) {
  constexpr size_t kSize = 47;
  const Indices whole = of_all_ranks(1, kSize, {.seed = 4}, 1).front();
  for (const int before : {1, 2, 3, 4, 8})
    for (const int after : {1, 2, 3, 4, 8})
      for (const size_t steps : {0U, 1U, 2U, 5U}) {
        SCOPED_TRACE(std::to_string(steps) + " each on " + std::to_string(before) + ", then " +
                     std::to_string(after));
        Sampler sampler(0, before, kSize, {.seed = 4});
        sampler.set_epoch(1);
        if (steps > 0) sampler.next(steps);
        const SamplerState state = sampler.state_dict();
        EXPECT_EQ(state.taken, steps * static_cast<size_t>(before));
        const Indices rest = taken_by(after, kSize, state);
        // All that is left, each once, and then a filling of less than one index per rank.
        const size_t left = kSize - state.taken;
        ASSERT_GE(rest.size(), left);
        EXPECT_LT(rest.size(), left + static_cast<size_t>(after));
        for (size_t i = 0; i < rest.size(); ++i)
          EXPECT_EQ(rest[i], whole[(state.taken + i) % kSize]) << "at " << i;
      }
}

TEST(Sampler, AnEpochThatWasOverIsNotBegunAgainOnOtherRanks) {
  for (const int after : {1, 2, 4, 8}) {
    Sampler before(0, 3, 47), next(after - 1, after, 47);
    rest_of(before);
    next.load_state_dict(before.state_dict());
    next.reset();
    EXPECT_EQ(next.epoch(), 1U) << after;
    EXPECT_EQ(rest_of(next), of_all_ranks(after, 47, {}, 1).back()) << after;
  }
}

std::string words_of(Sampler& sampler, const std::string& bytes) {
  try {
    restore(sampler, bytes);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

TEST(Sampler, RefusesToResumeAnotherOrder) {
  Sampler before(0, 2, 10, {.seed = 4});
  before.next(2);
  const std::string bytes = saved(before);
  Sampler seed(0, 2, 10, {.seed = 5}), size(0, 2, 11, {.seed = 4}),
      plain(0, 2, 10, {.shuffle = false, .seed = 4}), tail(0, 2, 10, {.seed = 4, .drop_last = true});
  EXPECT_THAT(words_of(seed, bytes), HasSubstr("seed 4, this one 5"));
  EXPECT_THAT(words_of(size, bytes), HasSubstr("dataset_size 10, this one 11"));
  EXPECT_THAT(words_of(plain, bytes), HasSubstr("shuffle"));
  EXPECT_THAT(words_of(tail, bytes), HasSubstr("drop_last"));
}

TEST(Sampler, RefusesARankOutsideTheGroup) {
  EXPECT_THROW(Sampler(2, 2, 10), c10::Error);
  EXPECT_THROW(Sampler(-1, 2, 10), c10::Error);
}

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  explicit Numbers(size_t n) : n(n) {}
  torch::data::Example<> get(size_t index) override {
    return {torch::full({1}, static_cast<int64_t>(index)), torch::zeros({1})};
  }
  c10::optional<size_t> size() const override { return n; }
  size_t n;
};

// What a loader hands out in one epoch.
template <class Loader>
Indices drain(Loader& loader) {
  Indices all;
  for (auto& batch : loader)
    for (const auto& example : batch)
      all.push_back(static_cast<size_t>(example.data.template item<int64_t>()));
  return all;
}

TEST(Sampler, FeedsADataLoader) {
  run_ranks(3, [](World& world) {
    auto loader = torch::data::make_data_loader(Numbers(20), Sampler(world, 20, {.seed = 6}),
                                                torch::data::DataLoaderOptions(4));
    for (size_t epoch = 0; epoch < 3; ++epoch)
      require(drain(*loader) == of_all_ranks(3, 20, {.seed = 6}, epoch)[static_cast<size_t>(world.rank())],
              "epoch " + std::to_string(epoch));
  });
}

TEST(Sampler, FeedsADataLoaderThatResumes) {
  Sampler before(0, 2, 20);
  before.next(4);
  const std::string bytes = saved(before);
  Sampler resumed(0, 2, 20);
  restore(resumed, bytes);
  auto loader =
      torch::data::make_data_loader(Numbers(20), std::move(resumed), torch::data::DataLoaderOptions(4));
  EXPECT_EQ(drain(*loader), rest_of(before));
  EXPECT_EQ(drain(*loader), of_all_ranks(2, 20, {}, 1).front());
}

}  // namespace
}  // namespace fsdp::testing
