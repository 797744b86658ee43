// The gather path that a part of the row keeps values for: which group gathers, how much, and in which dtype.
#include "support/fake_comm.h"
#include "transfer/gather_path.h"
#include "unit/transfer/path_data.h"

namespace fsdp::detail {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using testing::FakeComm;
using testing::floats;
using testing::GuardedSlot;
using ::testing::IsEmpty;
using testing::TruncatingCodec;

// The row has four ranks, of which the last two are a part. This rank is the last of both.
class GatherFromReshardGroup : public ::testing::Test {
 protected:
  GatherPathPtr make(bool shared_slots) {
    return gather_from_reshard_group(part.comm, shared_slots, over_row());
  }
  GatherPathPtr over_row() { return gather_over_row(row.comm, shard); }
  // A forward: what the row gathered is kept in parts.
  void pass_forward(GatherPath& path, at::ScalarType type = at::kFloat) {
    path.start(torch::zeros({8}, type), GatherFrom::row, "unit");
    path.finish();
    path.save();
    path.release();
    EXPECT_THAT(part.calls(), IsEmpty());
    row.calls();
  }

  FakeComm row{3, 4}, part{1, 2};
  const Tensor shard = torch::tensor({41.5F, 42.0F});
};

TEST_F(GatherFromReshardGroup, ForwardGathersInTheRow) {
  const auto path = make(/*shared_slots=*/true);
  const GuardedSlot room(8);
  path->start(room.slot, GatherFrom::row, "unit");
  path->finish();
  path->save();
  path->release();
  EXPECT_THAT(row.calls(),
              ElementsAre("all_gather unit: 2 Float -> 8 Float", "wait all_gather unit", "release: 8 Float"));
  EXPECT_THAT(part.calls(), IsEmpty());
  EXPECT_THAT(floats(room.slot), ElementsAre(11.5, 12, 21.5, 22, 31.5, 32, 41.5, 42));
}

TEST_F(GatherFromReshardGroup, BackwardGathersWhatWasKeptInThePart) {
  const auto path = make(/*shared_slots=*/true);
  pass_forward(*path);
  EXPECT_EQ(path->saved_bytes(), 4 * 4) << "half of the region on each of two ranks";
  const GuardedSlot room(8);
  EXPECT_TRUE(path->start(room.slot, GatherFrom::reshard_group, "unit").is_same(room.slot));
  EXPECT_THAT(part.calls(), ElementsAre("all_gather unit in its group: 4 Float -> 8 Float"));
  EXPECT_TRUE(room.untouched());
  path->finish();
  // This rank kept the second half; the other rank's is ten less, as the fake group has it.
  EXPECT_THAT(floats(room.slot), ElementsAre(21.5, 22, 31.5, 32, 31.5, 32, 41.5, 42));
  room.expect_only_the_slot_was_written();
  path->release();
  EXPECT_THAT(part.calls(), ElementsAre("wait all_gather unit in its group"));
  EXPECT_THAT(row.calls(), IsEmpty());
  path->drop_saved();
  EXPECT_EQ(path->saved_bytes(), 0);
}

TEST_F(GatherFromReshardGroup, KeepsTheComputeDtype) {
  const auto path = make(/*shared_slots=*/false);
  pass_forward(*path, at::kBFloat16);
  EXPECT_EQ(path->saved_bytes(), 4 * 2);
  path->start(torch::zeros({8}, at::kBFloat16), GatherFrom::reshard_group, "unit");
  EXPECT_THAT(part.calls(), ElementsAre("all_gather unit in its group: 4 BFloat16 -> 8 BFloat16"));
}

TEST_F(GatherFromReshardGroup, WithoutValuesNothingIsKept) {
  const auto path = make(/*shared_slots=*/false);
  path->save();
  EXPECT_EQ(path->saved_bytes(), 0);
  path->start(torch::zeros({8}), GatherFrom::row, "unit");
  path->drop();
  path->save();
  EXPECT_EQ(path->saved_bytes(), 0) << "nor what was dropped";
}

TEST_F(GatherFromReshardGroup, OnlyASlotOfThePartAloneIsItsOwn) {
  EXPECT_EQ(make(true)->memory(GatherFrom::reshard_group), SlotMemory::own);
  EXPECT_EQ(make(true)->memory(GatherFrom::row), SlotMemory::arena);
  EXPECT_EQ(make(false)->memory(GatherFrom::reshard_group), SlotMemory::arena);
  EXPECT_TRUE(make(true)->saves_for_backward());
  EXPECT_FALSE(over_row()->saves_for_backward());
}

TEST_F(GatherFromReshardGroup, MastersAreExactAndComeFromTheRow) {
  const auto path =
      gather_from_reshard_group(part.comm, /*shared_slots=*/false,
                                gather_through_codec(row.comm, shard, std::make_shared<TruncatingCodec>()));
  pass_forward(*path);
  const Tensor whole = torch::zeros({8});
  path->gather_master(whole, std::nullopt, "unit");
  EXPECT_THAT(row.calls(), ElementsAre("all_gather unit: 2 Float -> 8 Float", "wait all_gather unit"));
  EXPECT_THAT(part.calls(), IsEmpty());
  EXPECT_THAT(floats(whole), ElementsAre(11.5, 12, 21.5, 22, 31.5, 32, 41.5, 42));
}

}  // namespace
}  // namespace fsdp::detail
