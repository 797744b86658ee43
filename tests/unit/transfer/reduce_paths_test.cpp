// Each reduce path alone: which operations it issues, in which sizes and dtypes, and whose part it sums.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "support/fake_comm.h"
#include "transfer/reduce_path.h"
#include "unit/transfer/path_data.h"

namespace fsdp::detail {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using testing::FakeComm;
using ::testing::IsEmpty;
using testing::TruncatingCodec;

std::vector<double> numbers(const Tensor& tensor) {
  const Tensor flat = tensor.to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

// Rank 1 of 3: its part of the buffer is 14, 15, and the ranks hold 4, 5 and 14, 15 and 24, 25 of it.
class ReducePaths : public ::testing::Test {
 protected:
  FakeComm row{1, 3}, column{0, 2};
  const Tensor buffer = torch::tensor({2.0F, 3.0F, 14.0F, 15.0F, 26.0F, 27.0F});
  const Tensor before = buffer.clone();
  const Tensor memory = torch::full({4}, -1.0);
  const Tensor sum = memory.narrow(0, 1, 2);

  void expect_only_the_sum_was_written() const {
    EXPECT_TRUE(buffer.equal(before));
    EXPECT_EQ(memory[0].item<float>(), -1);
    EXPECT_EQ(memory[3].item<float>(), -1);
  }
};

TEST_F(ReducePaths, AloneThereIsNothingToDo) {
  const auto path = reduce_alone();
  EXPECT_TRUE(path->in_buffer());
  EXPECT_FALSE(path->crosses());
  path->start(buffer, buffer, "unit").wait();
  EXPECT_TRUE(buffer.equal(before));
}

TEST_F(ReducePaths, WholeRegionsAreAllReducedWhereTheyLie) {
  const auto path = reduce_whole(row.comm, ReduceOp::average);
  EXPECT_TRUE(path->in_buffer());
  Work work = path->start(buffer, buffer, "unit");
  EXPECT_THAT(row.calls(), ElementsAre("all_reduce unit: 6 Float, average"));
  EXPECT_TRUE(buffer.equal(before)) << "start() does not wait";
  work.wait();
  EXPECT_TRUE(buffer.equal(before)) << "the average over ranks that hold 10 less and 10 more";
  reduce_whole(row.comm, ReduceOp::sum)->start(buffer, buffer, "unit").wait();
  EXPECT_TRUE(buffer.equal(before * 3));
}

TEST_F(ReducePaths, OverTheRowThisRanksPartIsSummed) {
  for (const bool average : {true, false}) {
    const auto path = reduce_over_row(row.comm, average ? ReduceOp::average : ReduceOp::sum);
    EXPECT_FALSE(path->in_buffer());
    EXPECT_FALSE(path->crosses());
    sum.fill_(0);
    Work work = path->start(sum, buffer, "unit");
    EXPECT_THAT(row.calls(), ElementsAre(std::string("reduce_scatter unit: 6 Float -> 2 Float, ") +
                                         (average ? "average" : "sum")));
    EXPECT_THAT(numbers(sum), ElementsAre(0, 0)) << "start() does not wait";
    work.wait();
    EXPECT_THAT(row.calls(), ElementsAre("wait reduce_scatter unit"));
    EXPECT_THAT(numbers(sum), average ? ElementsAre(14, 15) : ElementsAre(42, 45));
    expect_only_the_sum_was_written();
  }
}

TEST_F(ReducePaths, OverTheRowTheReduceDtypeIsSent) {
  const Tensor narrow = torch::zeros({2}, at::kBFloat16);
  reduce_over_row(row.comm, ReduceOp::sum)->start(narrow, buffer.to(at::kBFloat16), "unit").wait();
  EXPECT_THAT(row.calls(),
              ElementsAre("reduce_scatter unit: 6 BFloat16 -> 2 BFloat16, sum", "wait reduce_scatter unit"));
}

TEST_F(ReducePaths, OverTheRowComplexNumbersAreSentAsPairs) {
  const Tensor complex_sum = torch::zeros({2}, at::kComplexFloat);
  reduce_over_row(row.comm, ReduceOp::sum)->start(complex_sum, torch::complex(buffer, buffer), "unit").wait();
  EXPECT_THAT(row.calls(),
              ElementsAre("reduce_scatter unit: 12 Float -> 4 Float, sum", "wait reduce_scatter unit"));
  EXPECT_THAT(numbers(torch::imag(complex_sum)), ElementsAre(42, 45));
}

TEST_F(ReducePaths, AcrossRowsTheRowsSumIsAllReduced) {
  const auto path =
      reduce_across_rows(column.comm, ReduceOp::average, reduce_over_row(row.comm, ReduceOp::average));
  EXPECT_TRUE(path->crosses());
  EXPECT_FALSE(path->in_buffer());
  path->start(sum, buffer, "unit").wait();
  EXPECT_THAT(column.calls(), IsEmpty());
  EXPECT_THAT(row.calls(),
              ElementsAre("reduce_scatter unit: 6 Float -> 2 Float, average", "wait reduce_scatter unit"));
  path->cross(sum, "unit").wait();
  EXPECT_THAT(column.calls(), ElementsAre("all_reduce unit: 2 Float, average", "wait all_reduce unit"));
  EXPECT_THAT(row.calls(), IsEmpty());
  EXPECT_THAT(numbers(sum), ElementsAre(19, 20)) << "14, 15 here and 24, 25 in the other row";
  expect_only_the_sum_was_written();
}

TEST_F(ReducePaths, AlongTheTreeABackendThatSumsInOrderDoesIt) {
  row.backend->in_order = true;
  reduce_along_tree(row.comm, nullptr)->start(sum, buffer, "unit").wait();
  EXPECT_THAT(row.calls(),
              ElementsAre("reduce_scatter unit: 6 Float -> 2 Float, sum", "wait reduce_scatter unit"));
  EXPECT_THAT(numbers(sum), ElementsAre(42, 45)) << "a sum, not an average";
  expect_only_the_sum_was_written();
}

TEST_F(ReducePaths, AlongTheTreeAWholeRegionIsAllReduced) {
  row.backend->in_order = true;
  const Tensor whole = torch::zeros({6});
  reduce_whole_along_tree(row.comm)->start(whole, buffer, "unit").wait();
  EXPECT_THAT(row.calls(), ElementsAre("all_reduce unit: 6 Float, sum", "wait all_reduce unit"));
  EXPECT_TRUE(whole.equal(before * 3));
  EXPECT_TRUE(buffer.equal(before));
}

TEST_F(ReducePaths, AlongTheTreeTheColumnFollowsTheRow) {
  row.backend->in_order = column.backend->in_order = true;
  reduce_along_tree(row.comm, &column.comm)->start(sum, buffer, "unit").wait();
  EXPECT_THAT(column.calls(), ElementsAre("all_reduce unit: 2 Float, sum", "wait all_reduce unit"));
  EXPECT_THAT(numbers(sum), ElementsAre(42 + 52, 45 + 55));
  expect_only_the_sum_was_written();
}

// (0 + 1) + 2: any other order loses the one.
TEST_F(ReducePaths, AlongTheTreeOtherBackendsSendPartsAndThisRankAdds) {
  row.backend->messages = {{0, torch::tensor({1e8F, 4.0F})}, {2, torch::tensor({1.0F, 24.0F})}};
  buffer.narrow(0, 2, 1).fill_(-1e8F);
  reduce_along_tree(row.comm, nullptr)->start(sum, buffer, "unit").wait();
  EXPECT_THAT(row.calls(),
              ElementsAre("send unit: 2 Float to 0", "recv unit: 2 Float from 0", "send unit: 2 Float to 2",
                          "recv unit: 2 Float from 2", "wait send unit", "wait recv unit", "wait send unit",
                          "wait recv unit"));
  EXPECT_THAT(numbers(sum), ElementsAre(1, 4 + 15 + 24));
}

TEST_F(ReducePaths, AlongTheTreeOneRankSendsNothing) {
  FakeComm alone(0, 1);
  const Tensor own = torch::zeros({6});
  reduce_along_tree(alone.comm, nullptr)->start(own, buffer, "unit").wait();
  EXPECT_THAT(alone.calls(), IsEmpty());
  EXPECT_TRUE(own.equal(before));
}

// The fraction is lost on the way, here to this rank itself too.
TEST_F(ReducePaths, ThroughACodecPartsAreSentAsItsBytes) {
  const Tensor bytes = torch::tensor({7, 4, 5}, at::kByte);  // the codec's own, then two values
  for (const bool average : {true, false}) {
    row.backend->in_order = true;  // decoding needs the parts: the backend cannot sum
    row.backend->messages = {{0, bytes}, {2, bytes + 20}};
    const auto path = reduce_through_codec(row.comm, average ? ReduceOp::average : ReduceOp::sum,
                                           std::make_shared<TruncatingCodec>());
    EXPECT_FALSE(path->in_buffer());
    path->start(sum, buffer + 0.5, "unit").wait();
    EXPECT_THAT(row.calls(),
                ElementsAre("send unit: 3 Byte to 0", "recv unit: 3 Byte from 0", "send unit: 3 Byte to 2",
                            "recv unit: 3 Byte from 2", "wait send unit", "wait recv unit", "wait send unit",
                            "wait recv unit"));
    EXPECT_THAT(numbers(sum), average ? ElementsAre(14, 15) : ElementsAre(42, 45));
    expect_only_the_sum_was_written();
  }
}

// What the runtime asks of a path instead of how many ranks there are.
TEST_F(ReducePaths, SayWhereBuffersAndSumsLie) {
  EXPECT_TRUE(reduce_alone()->alone());
  EXPECT_TRUE(reduce_alone()->in_buffer());
  EXPECT_FALSE(reduce_alone()->shares_buffer());
  EXPECT_FALSE(reduce_whole(row.comm, ReduceOp::sum)->alone());
  EXPECT_TRUE(reduce_whole(row.comm, ReduceOp::sum)->in_buffer());
  EXPECT_FALSE(reduce_whole(row.comm, ReduceOp::sum)->shares_buffer());
  EXPECT_TRUE(reduce_over_row(row.comm, ReduceOp::sum)->shares_buffer());
  EXPECT_FALSE(reduce_over_row(row.comm, ReduceOp::sum)->in_buffer());
  EXPECT_TRUE(reduce_along_tree(row.comm, nullptr)->shares_buffer());
  EXPECT_FALSE(reduce_whole_along_tree(row.comm)->shares_buffer());
  EXPECT_FALSE(reduce_whole_along_tree(row.comm)->in_buffer()) << "the tree reads it while it sums";
}

}  // namespace
}  // namespace fsdp::detail
