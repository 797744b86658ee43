// How much of a randomised test runs.
#pragma once

namespace fsdp::testing {

// How often a randomised test repeats: `full` under FSDP_LONG=1 (make test-long), `sample` otherwise.
int repeats(int sample, int full);
// Seed of randomised tests: FSDP_SEED, or 1. Printed, so that a failure can be repeated.
unsigned seed();

}  // namespace fsdp::testing
