// Splits a dataset over the ranks: a sampler for LibTorch's data loaders, as DistributedSampler is.
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
  bool drop_last = false;  // true: drop the tail that does not divide by the ranks; false: fill it up
};

// The position of a sampler, for all ranks. Save it with a run.
struct SamplerState {
  size_t epoch = 0;
  size_t taken = 0;         // indices of this epoch that all ranks together have taken
  size_t dataset_size = 0;  // the order of indices depends on this and on the options
  SamplerOptions options = {};
};

// Gives each rank every W-th index of the dataset, W being the number of ranks. The order is the same on all
// ranks.
//
// Every rank gets the same number of indices, so that all make the same number of steps. If the size does not
// divide by W, the order is padded with its first samples, or its tail is dropped. Apart from the padding, no
// two ranks share an index. Every epoch has a new shuffle, which depends on (seed, epoch) only: not on the
// rank, the platform or LibTorch's generators.
//
// A loader calls reset() when an epoch begins. The first epoch is 0; each reset() after indices were taken
// starts the next one. So a loop over epochs calls nothing else. set_epoch() chooses another epoch.
//
// Resuming: save the state in the middle of an epoch, load it into a new Sampler, on any number of ranks. The
// next reset() continues after the last index that any rank took, or starts the next epoch if the saved one
// was over. Loaders with worker threads take indices ahead of the batches they return: use no workers, or
// save between epochs.
//
// Threads: one at a time.
class Sampler : public torch::data::samplers::Sampler<> {
 public:
  Sampler(const World& world, size_t dataset_size, const SamplerOptions& options = {});
  // As rank `rank` of `ranks`, without a World. Throws c10::Error if `rank` is out of range.
  Sampler(int rank, int ranks, size_t dataset_size, const SamplerOptions& options = {});

  // Begins an epoch; `new_size`: the size of the dataset from now on.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  // Up to `batch_size` indices; nullopt when the epoch is over. The last batch may be smaller.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  // Starts `epoch` at its beginning.
  void set_epoch(size_t epoch);
  size_t epoch() const { return epoch_; }
  size_t taken() const { return position_; }  // indices taken in this epoch, on this rank
  size_t size() const { return share_; }      // indices per epoch, on this rank

  // Loading throws c10::Error if size or options differ from this sampler's, since the order of indices would
  // differ.
  SamplerState state_dict() const;
  void load_state_dict(const SamplerState& state);
  // The same for LibTorch's archives.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void resize(size_t dataset_size);
  size_t share() const;  // number of this rank's indices in an epoch
  void order();

  size_t rank_, ranks_;
  SamplerOptions options_;
  size_t dataset_size_ = 0;
  size_t share_ = 0;
  size_t epoch_ = 0;
  size_t start_ = 0;  // indices of this epoch before the first position: less than ranks_
  size_t position_ = 0;
  bool resuming_ = false;        // the next reset() keeps the position that was loaded
  std::vector<size_t> indices_;  // [share_], of this epoch; empty: not made yet
};

}  // namespace fsdp
