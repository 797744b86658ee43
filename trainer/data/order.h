// Which samples a step trains on, and on which rank: a function of (seed, epoch, step), with no state.
#pragma once

#include <array>
#include <cstdint>

namespace fsdp::data {

// Note [Order of samples]
// An epoch is a permutation of all samples that depends on (seed, epoch) only. Step s of the epoch takes the
// G = global_batch samples at positions [s*G, (s+1)*G). Position j of a step is in microbatch j / batch_size;
// microbatch i runs on rank i mod W as its (i / W)-th backward. So the samples of a step are the same for
// every number of ranks W, and in reproducible mode the order in which gradients are summed is as well. The
// tail of an epoch that is shorter than G is dropped.
//
// The permutation is not stored: it is a Feistel network over the smallest even number of bits, at least 12,
// that holds the number of samples. Results that are too large are encrypted again until they fit: fewer than
// 4 times on average for more than 1,024 samples. So a sample costs about as much as a few hashes, and any
// (epoch, step) can be read first.

// A permutation of [0, size) that depends on the key only.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key);
  uint64_t operator()(uint64_t position) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t encrypt(uint64_t value) const;

  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

// A point of training: `step` counts from the beginning of its epoch.
struct Position {
  uint64_t epoch = 0, step = 0;
  bool operator==(const Position&) const = default;
};

class Order {
 public:
  // `shuffle` false: every epoch in the order of the data. Throws DataError if there are fewer samples than
  // one global batch has.
  Order(uint64_t samples, uint64_t global_batch, uint64_t seed, bool shuffle = true);

  uint64_t samples() const { return samples_; }
  uint64_t global_batch() const { return global_batch_; }
  uint64_t steps_per_epoch() const { return samples_ / global_batch_; }
  // Samples at the end of each epoch that no step uses. With shuffle, they are others in every epoch.
  uint64_t dropped_per_epoch() const { return samples_ % global_batch_; }

  // The sample at `index` < global_batch() of a step. `step` counts from the beginning of training and goes
  // on through the epochs.
  uint64_t sample(uint64_t step, uint64_t index) const;

  Position position(uint64_t step) const { return {step / steps_per_epoch(), step % steps_per_epoch()}; }
  uint64_t step(const Position& at) const { return at.epoch * steps_per_epoch() + at.step; }

 private:
  uint64_t samples_, global_batch_, seed_;
  bool shuffle_;
};

// The part of every step that one rank computes.
struct Share {
  uint64_t rank = 0, ranks = 1;
  uint64_t batch_size = 1;  // samples per microbatch

  // Throws DataError, with the values that would fit, unless global_batch divides into batch_size * ranks.
  void check(uint64_t global_batch) const;
  // Backward passes of this rank per step.
  uint64_t microbatches(uint64_t global_batch) const { return global_batch / (batch_size * ranks); }
  // The index in the step, below global_batch, of row `row` of this rank's microbatch `number`.
  uint64_t index(uint64_t number, uint64_t row) const { return (number * ranks + rank) * batch_size + row; }
};

}  // namespace fsdp::data
