#include "trainer/data/order.h"

#include <string>

#include "trainer/data/error.h"
#include "trainer/data/mix.h"

namespace fsdp::data {

namespace {

// A network over fewer bits has too few permutations to be told from a shuffle.
constexpr int kLeastHalfBits = 6;

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t key) : size_(size), half_bits_(kLeastHalfBits) {
  while (2 * half_bits_ < 64 && (uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
  for (uint64_t& round : keys_) round = key = mix(key);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mix(right ^ key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t position) const {
  uint64_t value = encrypt(position);
  while (value >= size_) value = encrypt(value);
  return value;
}

Order::Order(uint64_t samples, uint64_t global_batch, uint64_t seed, bool shuffle)
    : samples_(samples), global_batch_(global_batch), seed_(seed), shuffle_(shuffle) {
  if (global_batch_ == 0) throw DataError("a global batch of 0 samples; at least 1 is expected");
  if (samples_ < global_batch_)
    throw DataError("the data has " + std::to_string(samples_) + " samples, fewer than one global batch of " +
                    std::to_string(global_batch_) +
                    ". Give more data, a smaller global_batch_size or a shorter sequence length");
}

uint64_t Order::sample(uint64_t step, uint64_t index) const {
  const Position at = position(step);
  const uint64_t place = at.step * global_batch_ + index;
  return shuffle_ ? Permutation(samples_, mix(mix(seed_) ^ at.epoch))(place) : place;
}

void Share::check(uint64_t global_batch) const {
  if (ranks == 0 || rank >= ranks)
    throw DataError("rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " ranks");
  if (batch_size > 0 && global_batch > 0 && global_batch % (batch_size * ranks) == 0) return;
  std::string fitting;
  for (uint64_t size = 1; size * ranks <= global_batch; ++size)
    if (global_batch % (size * ranks) == 0) fitting += (fitting.empty() ? "" : ", ") + std::to_string(size);
  throw DataError(
      "global_batch_size " + std::to_string(global_batch) + " does not divide into batch_size " +
      std::to_string(batch_size) + " x " + std::to_string(ranks) + " ranks. " +
      (fitting.empty() ? "No batch_size fits on this number of ranks" : "batch_size may be " + fitting));
}

}  // namespace fsdp::data
