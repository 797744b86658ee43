// Which samples of a dataset each rank sees: a sampler for LibTorch's data loaders, made from a World.
#pragma once

#include <fsdp/world.h>
#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp {

struct SamplerOptions {
  bool shuffle = true;     // false: every epoch in the dataset's own order
  uint64_t seed = 0;       // the same on every rank
  bool drop_last = false;  // true: the tail that does not divide by the ranks is left out, not filled up
};

// Gives this rank every W-th index of one order of the dataset that is the same on all ranks.
//
// Every rank gets the same number of indices, so that all make the same number of steps. Where the size does
// not divide by W, the order is filled up from its own beginning, or its tail is dropped; before that, no two
// ranks have an index in common. The order is shuffled anew in every epoch, from (seed, epoch) alone: not
// from the rank, the platform or LibTorch's generators.
//
// A loader calls reset() when an epoch begins. The first epoch is 0; each reset() after indices were taken
// goes on to the next one. So a loop over epochs needs nothing else; set_epoch() chooses another.
//
// Resuming: save() in the middle of an epoch, load() into a new Sampler; the next epoch that begins goes on
// behind the last index taken, or is the next one where the saved one was over. Loaders with worker threads
// take indices ahead of the batches they hand out: give them none, or save between epochs.
//
// Threads: one at a time; a loader asks from one.
class Sampler : public torch::data::samplers::Sampler<> {
 public:
  Sampler(const World& world, size_t dataset_size, const SamplerOptions& options = {});
  // As rank `rank` of `ranks`, without a World.
  Sampler(int rank, int ranks, size_t dataset_size, const SamplerOptions& options = {});

  // Begins an epoch; `new_size`: the dataset has another size from now on.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  // Up to `batch_size` indices; none when the epoch is over. The last batch may be smaller.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  // Goes to the beginning of `epoch`.
  void set_epoch(size_t epoch);
  size_t epoch() const { return epoch_; }
  size_t taken() const { return position_; }  // indices of this epoch so far, on this rank
  size_t size() const { return share_; }      // indices of one epoch, on this rank

  // Epoch and position; and seed, sizes and options, which load() compares: it throws c10::Error when they
  // are not this sampler's, since the order would be another one.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void resize(size_t dataset_size);
  void order();

  size_t rank_, ranks_;
  SamplerOptions options_;
  size_t dataset_size_ = 0;
  size_t share_ = 0;
  size_t epoch_ = 0;
  size_t position_ = 0;
  bool resuming_ = false;        // the next reset() keeps the position that was loaded
  std::vector<size_t> indices_;  // [share_], of this epoch; empty: not made yet
};

}  // namespace fsdp
