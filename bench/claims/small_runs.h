// Small models: equal parameters on any number of ranks, and a loss that falls.
#pragma once

#include <string>

namespace bench {

struct EqualSettings {
  std::string device = "cpu";
  int ranks = 2;
  std::string data = "same";  // same, split, or reproducible
  int steps = 100;
};

// Trains an MLP with SGD in `settings.ranks` processes and, on rank 0, in a plain loop over the whole batch.
// Rank 0 prints one JSON line: the largest difference between the parameters at the end, and their hash.
// data: "same": every rank gets the whole batch; "split": every rank gets its part of it; "reproducible":
// the same in reproducible mode, 8 microbatches a step.
void compare_with_plain_loop(const EqualSettings& settings);

struct LearnSettings {
  std::string device = "cpu";
  int ranks = 4;
  std::string strategy = "full_shard";
  int steps = 300;
};

// Trains an MLP on data that differs from rank to rank. Rank 0 prints one JSON line: the first and the last
// loss, mean over the ranks, and the bytes of parameters, gradients and moments of the rank that has most.
void learn(const LearnSettings& settings);

}  // namespace bench
