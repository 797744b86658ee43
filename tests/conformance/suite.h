// The promises every backend keeps, checked inside the ranks of one World. Checks throw.
#pragma once

#include <fsdp/fsdp.h>

namespace fsdp::testing {

// What differs between backends.
struct Conduct {
  CommOptions options;
  bool tree_sums = true;       // bits of sums follow Note [The tree of sums]
  bool finds_mismatch = true;  // tells what each rank issued
};

void check_collectives(World& world, const Conduct& conduct);  // every op, dtype and size, closed-form data
void check_repeatable_bits(World& world, const Conduct& conduct);
void check_allocated_memory(World& world, const Conduct& conduct);
void check_work_in_flight(World& world, const Conduct& conduct);
void check_messages(World& world, const Conduct& conduct);
void check_split(World& world, const Conduct& conduct);
void check_stats(World& world, const Conduct& conduct);
void check_refusals(World& world, const Conduct& conduct);

// All of the above.
void check_everything(World& world, const Conduct& conduct);

}  // namespace fsdp::testing
