#include "plan/schedule.h"

#include <gtest/gtest.h>

namespace fsdp::detail {
namespace {

// Evaluations with gradients on never end a cycle.
TEST(Schedule, ACycleThatDoesNotEndIsNotPlanned) {
  Schedule schedule;
  schedule.begin({});
  for (int i = 0; i < 20000; ++i) schedule.advance({.unit = i % 7, .phase = Phase::forward});
  EXPECT_TRUE(schedule.worth_planning());
  schedule.advance({.unit = 0, .phase = Phase::forward});
  EXPECT_FALSE(schedule.worth_planning());
  schedule.begin({});
  schedule.advance({.unit = 0, .phase = Phase::forward});
  EXPECT_TRUE(schedule.worth_planning());
}

}  // namespace
}  // namespace fsdp::detail
