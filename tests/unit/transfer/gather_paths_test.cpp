// Each gather path alone: which operations it issues, in which sizes and dtypes, and where values come to
// lie.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "support/fake_comm.h"
#include "transfer/gather_path.h"
#include "unit/transfer/truncating_codec.h"

namespace fsdp::detail {
namespace {

using at::Tensor;
using fsdp::testing::FakeComm;
using fsdp::testing::TruncatingCodec;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Floats = std::vector<float>;

Floats floats(const Tensor& tensor) {
  const Tensor flat = tensor.to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

// A slot between elements that belong to others.
struct GuardedSlot {
  explicit GuardedSlot(int64_t numel, at::ScalarType type = at::kFloat)
      : memory(torch::full({numel + 4}, -1, type)), slot(memory.narrow(0, 2, numel)) {}
  void expect_only_the_slot_was_written() const {
    EXPECT_THAT(floats(memory.narrow(0, 0, 2)), ElementsAre(-1, -1));
    EXPECT_THAT(floats(memory.narrow(0, memory.numel() - 2, 2)), ElementsAre(-1, -1));
  }
  bool untouched() const { return memory.eq(-1).all().item<bool>(); }
  Tensor memory, slot;
};

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

// The row has four ranks, of which the last two are a part. This rank is the last of both.
class GatherFromPart : public ::testing::Test {
 protected:
  GatherPathPtr make(bool shared_slots) { return gather_from_part(part.comm, shared_slots, over_row()); }
  GatherPathPtr over_row() { return gather_over_row(row.comm, shard); }
  // A forward: what the row gathered is kept in parts.
  void pass_forward(GatherPath& path, at::ScalarType type = at::kFloat) {
    path.start(torch::zeros({8}, type), GatherFrom::row, "unit");
    path.finish();
    path.keep();
    path.release();
    EXPECT_THAT(part.calls(), IsEmpty());
    row.calls();
  }

  FakeComm row{3, 4}, part{1, 2};
  const Tensor shard = torch::tensor({41.5F, 42.0F});
};

TEST_F(GatherFromPart, ForwardGathersInTheRow) {
  const auto path = make(/*shared_slots=*/true);
  const GuardedSlot room(8);
  path->start(room.slot, GatherFrom::row, "unit");
  path->finish();
  path->keep();
  path->release();
  EXPECT_THAT(row.calls(),
              ElementsAre("all_gather unit: 2 Float -> 8 Float", "wait all_gather unit", "release: 8 Float"));
  EXPECT_THAT(part.calls(), IsEmpty());
  EXPECT_THAT(floats(room.slot), ElementsAre(11.5, 12, 21.5, 22, 31.5, 32, 41.5, 42));
}

TEST_F(GatherFromPart, BackwardGathersWhatWasKeptInThePart) {
  const auto path = make(/*shared_slots=*/true);
  pass_forward(*path);
  EXPECT_EQ(path->kept_bytes(), 4 * 4) << "half of the region on each of two ranks";
  const GuardedSlot room(8);
  EXPECT_TRUE(path->start(room.slot, GatherFrom::part, "unit").is_same(room.slot));
  EXPECT_THAT(part.calls(), ElementsAre("all_gather unit in its group: 4 Float -> 8 Float"));
  EXPECT_TRUE(room.untouched());
  path->finish();
  // This rank kept the second half; the other rank's is ten less, as the fake group has it.
  EXPECT_THAT(floats(room.slot), ElementsAre(21.5, 22, 31.5, 32, 31.5, 32, 41.5, 42));
  room.expect_only_the_slot_was_written();
  path->release();
  EXPECT_THAT(part.calls(), ElementsAre("wait all_gather unit in its group"));
  EXPECT_THAT(row.calls(), IsEmpty());
  path->drop_kept();
  EXPECT_EQ(path->kept_bytes(), 0);
}

TEST_F(GatherFromPart, KeepsTheComputeDtype) {
  const auto path = make(/*shared_slots=*/false);
  pass_forward(*path, at::kBFloat16);
  EXPECT_EQ(path->kept_bytes(), 4 * 2);
  path->start(torch::zeros({8}, at::kBFloat16), GatherFrom::part, "unit");
  EXPECT_THAT(part.calls(), ElementsAre("all_gather unit in its group: 4 BFloat16 -> 8 BFloat16"));
}

TEST_F(GatherFromPart, WithoutValuesNothingIsKept) {
  const auto path = make(/*shared_slots=*/false);
  path->keep();
  EXPECT_EQ(path->kept_bytes(), 0);
  path->start(torch::zeros({8}), GatherFrom::row, "unit");
  path->drop();
  path->keep();
  EXPECT_EQ(path->kept_bytes(), 0) << "nor what was dropped";
}

TEST_F(GatherFromPart, OnlyASlotOfThePartAloneIsItsOwn) {
  EXPECT_EQ(make(true)->memory(GatherFrom::part), SlotMemory::own);
  EXPECT_EQ(make(true)->memory(GatherFrom::row), SlotMemory::arena);
  EXPECT_EQ(make(false)->memory(GatherFrom::part), SlotMemory::arena);
  EXPECT_TRUE(make(true)->can_keep());
  EXPECT_FALSE(over_row()->can_keep());
}

TEST_F(GatherFromPart, MastersAreExactAndComeFromTheRow) {
  const auto path =
      gather_from_part(part.comm, /*shared_slots=*/false,
                       gather_through_codec(row.comm, shard, std::make_shared<TruncatingCodec>()));
  pass_forward(*path);
  const Tensor whole = torch::zeros({8});
  path->gather_master(whole, std::nullopt, "unit");
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: 2 Float -> 8 Float", "wait all_gather unit"));
  EXPECT_THAT(part.calls(), IsEmpty());
  EXPECT_THAT(floats(whole), ElementsAre(11.5, 12, 21.5, 22, 31.5, 32, 41.5, 42));
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
  EXPECT_TRUE(path->lends());
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
