#include <fsdp/comm.h>
#include <gtest/gtest.h>

#include "comm/state.h"
#include "support/fake_comm.h"

namespace fsdp::detail {
namespace {

// Reproducible mode lets the backend sum where it says that it sums in order.
TEST(Comm, SumsInOrderIsNotWhetherOperationsAreCompared) {
  for (const bool compares : {false, true})
    for (const bool in_order : {false, true}) {
      const auto backend = std::make_shared<testing::FakeBackend>();
      backend->compares = compares;
      backend->in_order = in_order;
      const auto state = std::make_shared<CommState>();
      state->info.size = 2;
      state->backend = backend;
      EXPECT_EQ(Comm(state).sums_in_order(), in_order) << "compares operations: " << compares;
      EXPECT_EQ(state->keeps_order(), !compares) << "sums in order: " << in_order;
    }
}

}  // namespace
}  // namespace fsdp::detail
