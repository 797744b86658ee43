// Each gather path alone: which operations it issues, in which sizes and dtypes, and where values come to
// lie.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "support/fake_comm.h"
#include "transfer/gather_path.h"
#include "unit/transfer/path_data.h"

namespace fsdp::detail {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using testing::FakeComm;
using testing::Floats;
using testing::floats;
using testing::GuardedSlot;
using ::testing::IsEmpty;
using testing::TruncatingCodec;
// Rank 1 of 3. Its shard ends in padding, which is gathered as what it is.
class GatherPaths : public ::testing::Test {
 protected:
  FakeComm row{1, 3};
  const Tensor shard = torch::tensor({21.5F, 22.0F, 0.0F});
  const Floats all_exact = {11.5, 12, -10, 21.5, 22, 0, 31.5, 32, 10};
};

TEST_F(GatherPaths, OverTheRowFillTheSlotInTheOrderOfRanks) {
  const auto path = gather_over_row(row.comm, shard);
  EXPECT_EQ(path->memory(GatherFrom::row), SlotMemory::arena);
  const GuardedSlot room(9);
  EXPECT_TRUE(path->start(room.slot, GatherFrom::row, "unit").is_same(room.slot));
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: 3 Float -> 9 Float"));
  EXPECT_TRUE(room.untouched()) << "start() does not wait";
  path->finish();
  EXPECT_THAT(row.calls(), ElementsAre("wait all_gather unit"));
  EXPECT_EQ(floats(room.slot), all_exact);
  room.expect_only_the_slot_was_written();
  path->release();
  EXPECT_THAT(row.calls(), ElementsAre("release: 9 Float"));
}

TEST_F(GatherPaths, OverTheRowCastToTheSlotsDtype) {
  const auto path = gather_over_row(row.comm, shard);
  const GuardedSlot room(9, at::kBFloat16);
  path->start(room.slot, GatherFrom::row, "unit");
  path->finish();
  path->release();
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: 3 Float -> 9 BFloat16", "wait all_gather unit",
                                       "release: 9 BFloat16"));
  EXPECT_EQ(floats(room.slot), all_exact);
}

TEST_F(GatherPaths, OverTheRowSendComplexNumbersAsPairs) {
  const auto path = gather_over_row(row.comm, torch::complex(shard, shard));
  const Tensor slot = torch::zeros({9}, at::kComplexFloat);
  path->start(slot, GatherFrom::row, "unit");
  path->release();
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: 6 Float -> 18 Float", "wait all_gather unit",
                                       "release: 18 Float"));
  EXPECT_EQ(floats(torch::imag(slot)), all_exact);
}

TEST_F(GatherPaths, OverTheRowReleaseWaitsWhereNobodyHas) {
  const auto path = gather_over_row(row.comm, shard);
  path->start(torch::zeros({9}), GatherFrom::row, "unit");
  row.calls();
  path->release();
  EXPECT_THAT(row.calls(), ElementsAre("wait all_gather unit", "release: 9 Float"));
}

TEST_F(GatherPaths, OverTheRowDropWaitsForNobody) {
  const auto path = gather_over_row(row.comm, shard);
  path->start(torch::zeros({9}), GatherFrom::row, "unit");
  row.calls();
  path->drop();
  EXPECT_THAT(row.calls(), ElementsAre("drop all_gather unit"));
}

TEST_F(GatherPaths, MastersAreGatheredOnAllRanks) {
  const GuardedSlot room(9);
  gather_over_row(row.comm, shard)->gather_master(room.slot, std::nullopt, "unit");
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: 3 Float -> 9 Float", "wait all_gather unit"));
  EXPECT_EQ(floats(room.slot), all_exact);
  room.expect_only_the_slot_was_written();
}

TEST_F(GatherPaths, MastersForOneRankComeOneByOne) {
  row.backend->messages = {{0, torch::full({3}, 4.5)}, {2, torch::full({3}, 6.5)}};
  const GuardedSlot room(9);
  gather_over_row(row.comm, shard)->gather_master(room.slot, 1, "unit");
  EXPECT_THAT(row.calls(), ElementsAre("recv unit: 3 Float from 0", "wait recv unit",
                                       "recv unit: 3 Float from 2", "wait recv unit"));
  EXPECT_THAT(floats(room.slot), ElementsAre(4.5, 4.5, 4.5, 21.5, 22, 0, 6.5, 6.5, 6.5));
  room.expect_only_the_slot_was_written();
}

TEST_F(GatherPaths, MastersForAnotherRankAreSent) {
  gather_over_row(row.comm, shard)->gather_master(torch::empty({0}), 2, "unit");
  EXPECT_THAT(row.calls(), ElementsAre("send unit: 3 Float to 2", "wait send unit"));
}

TEST_F(GatherPaths, ThroughACodecGatherItsBytes) {
  const auto path = gather_through_codec(row.comm, shard, std::make_shared<TruncatingCodec>());
  const GuardedSlot room(9, at::kBFloat16);
  EXPECT_EQ(path->wire_bytes(), 0);
  path->start(room.slot, GatherFrom::row, "unit");
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: 4 Byte -> 12 Byte"));
  EXPECT_EQ(path->wire_bytes(), 12);
  EXPECT_TRUE(room.untouched());
  path->finish();
  EXPECT_THAT(row.calls(), ElementsAre("wait all_gather unit"));
  EXPECT_EQ(path->wire_bytes(), 0);
  // Bytes have no negative numbers: the padding of rank 0 is 256 - 10 here.
  EXPECT_THAT(floats(room.slot), ElementsAre(11, 12, 246, 21, 22, 0, 31, 32, 10));
  room.expect_only_the_slot_was_written();
  path->release();
  EXPECT_THAT(row.calls(), IsEmpty()) << "the slot is this rank's own memory";
}

TEST_F(GatherPaths, ThroughACodecReleaseWaitsAndDecodesNothing) {
  const auto path = gather_through_codec(row.comm, shard, std::make_shared<TruncatingCodec>());
  const GuardedSlot room(9);
  path->start(room.slot, GatherFrom::row, "unit");
  path->release();
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: 4 Byte -> 12 Byte", "wait all_gather unit"));
  EXPECT_EQ(path->wire_bytes(), 0);
  EXPECT_TRUE(room.untouched());
}

TEST_F(GatherPaths, ThroughACodecMastersAreExact) {
  const auto path = gather_through_codec(row.comm, shard, std::make_shared<TruncatingCodec>());
  const Tensor whole = torch::zeros({9});
  path->gather_master(whole, std::nullopt, "unit");
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: 3 Float -> 9 Float", "wait all_gather unit"));
  EXPECT_EQ(floats(whole), all_exact);
}

TEST_F(GatherPaths, InPlaceNeedNoSlot) {
  const auto path = gather_in_place(shard);
  EXPECT_EQ(path->memory(GatherFrom::row), SlotMemory::none);
  EXPECT_TRUE(path->start({}, GatherFrom::row, "unit").is_same(shard));
  path->finish();
  path->release();
  const GuardedSlot room(3);
  path->gather_master(room.slot, std::nullopt, "unit");
  EXPECT_EQ(floats(room.slot), floats(shard));
  room.expect_only_the_slot_was_written();
  path->gather_master(torch::empty({0}), 2, "unit");  // for another rank: it has the values itself
}

TEST_F(GatherPaths, ByCastRoundTheValuesAndNotTheMasters) {
  const Tensor fine = torch::tensor({1.0F, 1.0F + 1.0F / 1024});  // bf16 has no such number
  const auto path = gather_by_cast(fine, nullptr);
  EXPECT_EQ(path->memory(GatherFrom::row), SlotMemory::arena);
  const GuardedSlot room(2, at::kBFloat16);
  EXPECT_TRUE(path->start(room.slot, GatherFrom::row, "unit").is_same(room.slot));
  path->finish();
  EXPECT_THAT(floats(room.slot), ElementsAre(1, 1));
  room.expect_only_the_slot_was_written();
  path->release();
  const Tensor whole = torch::zeros({2});
  path->gather_master(whole, std::nullopt, "unit");
  EXPECT_TRUE(whole.equal(fine));
  path->gather_master(torch::empty({0}), 2, "unit");
}

// This rank's shard is the second part of what all ranks see.
TEST_F(GatherPaths, SharedShardsAgreeAndCopyNothing) {
  const Tensor memory = torch::zeros({9});
  const Tensor mine = memory.narrow(0, 3, 3).copy_(shard);
  const auto path = gather_shared_shards(row.comm, mine, memory);
  EXPECT_EQ(path->memory(GatherFrom::row), SlotMemory::none);
  EXPECT_TRUE(path->start({}, GatherFrom::row, "unit").is_same(memory));
  path->finish();
  path->release();
  EXPECT_THAT(row.calls(),
              ElementsAre("all_gather unit: 3 Float -> 9 Float", "wait all_gather unit", "release: 9 Float"));
  EXPECT_TRUE(path->peers_read_shard());
  path->claim("optimizer");
  EXPECT_THAT(row.calls(), ElementsAre("claim optimizer: 9 Float"));
}

TEST_F(GatherPaths, SharedShardsGiveTheirMastersBack) {
  const Tensor memory = torch::zeros({9});
  const auto path = gather_shared_shards(row.comm, memory.narrow(0, 3, 3).copy_(shard), memory);
  const GuardedSlot room(9);
  path->gather_master(room.slot, std::nullopt, "unit");
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: whole: 3 Float -> 9 Float",
                                       "wait all_gather unit: whole", "release: 9 Float"));
  EXPECT_EQ(floats(room.slot), all_exact);
  room.expect_only_the_slot_was_written();
}

}  // namespace
}  // namespace fsdp::detail
