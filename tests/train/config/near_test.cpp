// "Did you mean": which names are near.
#include "app/config/near.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::config {
namespace {

TEST(Near, DistancesCountLettersAndSwappedNeighbours) {
  EXPECT_EQ(edit_distance("batch_size", "batch_size"), 0U);
  EXPECT_EQ(edit_distance("Batch_Size", "batch_size"), 0U);
  EXPECT_EQ(edit_distance("batchsize", "batch_size"), 1U);
  EXPECT_EQ(edit_distance("bacth_size", "batch_size"), 1U);
  EXPECT_EQ(edit_distance("batch_seze", "batch_size"), 1U);
  EXPECT_EQ(edit_distance("", "lr"), 2U);
}

TEST(Near, OfTwoTheNearerOne) {
  EXPECT_EQ(nearest("max_stesp", {"max_epochs", "max_steps"}), "max_steps");
  EXPECT_EQ(nearest("accumulation", {"batch_size", "gradient_accumulation_steps"}),
            "gradient_accumulation_steps");
}

TEST(Near, NothingIsNearAnUnrelatedWord) {
  EXPECT_EQ(nearest("xyzzyq", {"training", "model", "data"}), "");
  EXPECT_EQ(nearest("ab", {"xy"}), "");
  EXPECT_EQ(nearest("", {"xy"}), "");
  EXPECT_EQ(did_you_mean("xyzzyq", {"training"}), "");
  EXPECT_EQ(did_you_mean("trainig", {"training"}), ", did you mean 'training'?");
}

}  // namespace
}  // namespace fsdp::config
