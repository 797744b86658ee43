#include "comm/order_log.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "unit/comm/group_of_two.h"

namespace fsdp::detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OrderLogTest : public ::testing::Test {
 protected:
  // What an all-reduce of both digests brings.
  at::Tensor sum() const { return at::full({1}, a_.digest(), at::kLong) + b_.digest(); }

  // What rank 0 is told once rank 1 has shared its log.
  CommError::Details difference() {
    b_.share(group_of_two(store_, 1));
    try {
      a_.throw_difference(info_);
    } catch (const CommError& error) {
      return error.details();
    }
    ADD_FAILURE() << "no difference was found";
    return {};
  }

  c10::intrusive_ptr<::c10d::Store> store_ = c10::make_intrusive<::c10d::HashStore>();
  GroupInfo info_ = group_of_two(store_, 0);
  OrderLog a_, b_;
};

TEST_F(OrderLogTest, TheDigestIsOfOperationLabelSizeAndOrder) {
  const auto digest_of = [](std::vector<std::tuple<const char*, const char*, size_t>> entries) {
    OrderLog log;
    for (const auto& [op, label, bytes] : entries) log.add(op, label, bytes);
    return log.digest();
  };
  const auto digest = digest_of({{"all_gather", "a", 8}, {"all_gather", "b", 8}});
  EXPECT_EQ(digest, digest_of({{"all_gather", "a", 8}, {"all_gather", "b", 8}}));
  EXPECT_NE(digest, digest_of({{"all_gather", "b", 8}, {"all_gather", "a", 8}}));
  EXPECT_NE(digest, digest_of({{"all_gather", "a", 8}, {"all_reduce", "b", 8}}));
  EXPECT_NE(digest, digest_of({{"all_gather", "a", 8}, {"all_gather", "c", 8}}));
  EXPECT_NE(digest, digest_of({{"all_gather", "a", 8}, {"all_gather", "b", 16}}));
  EXPECT_NE(digest, digest_of({{"all_gather", "a", 8}}));
}

TEST_F(OrderLogTest, AnswersAreComparedWithTheLogAsItWasWhenAsked) {
  a_.add("all_gather", "unit 1", 64);
  b_.add("all_gather", "unit 1", 64);
  a_.ask(info_, sum());
  a_.add("all_gather", "unit 2", 64);
  EXPECT_TRUE(a_.look(info_, /*wait=*/true));
  a_.ask(info_, sum());
  EXPECT_FALSE(a_.look(info_, /*wait=*/true)) << "rank 1 was not asked for unit 2";
  EXPECT_TRUE(a_.look(info_, /*wait=*/true)) << "every answer is compared once";
}

TEST_F(OrderLogTest, TheFirstDifferenceIsNamedOnBothSides) {
  for (OrderLog* log : {&a_, &b_}) log->add("barrier", "start", 0);
  for (int i = 0; i < 2; ++i) {
    a_.add("all_gather", "left", 64);
    b_.add("all_gather", "right", 64);
  }
  const auto met = difference();
  EXPECT_EQ(met.fault, CommFault::mismatch);
  EXPECT_EQ(met.rank, 10);
  EXPECT_EQ(met.culprit, 11);
  EXPECT_EQ(met.sequence, 1u);
  EXPECT_THAT(met.reason,
              AllOf(HasSubstr("rank 11"), HasSubstr("issued all_gather 'right' of 64 bytes where"),
                    HasSubstr("rank 10"), HasSubstr("issued all_gather 'left' of 64 bytes.")));
}

TEST_F(OrderLogTest, OperationsAreComparedByTheirNumberThoughOldOnesAreForgotten) {
  for (int i = 0; i < 700; ++i)
    for (OrderLog* log : {&a_, &b_}) log->add("all_gather", i == 650 && log == &b_ ? "other" : "unit", 64);
  for (int i = 0; i < 20; ++i) b_.add("all_gather", "unit", 64);  // rank 1 is ahead: no difference yet
  EXPECT_EQ(difference().sequence, 650u);
}

TEST_F(OrderLogTest, LabelsMayHaveSpacesAndQuotes) {
  a_.add("all_gather", "block '3', part 1", 64);
  b_.add("all_gather", "block '3', part 2", 64);
  EXPECT_THAT(difference().reason, HasSubstr("'block '3', part 2'"));
}

}  // namespace
}  // namespace fsdp::detail
