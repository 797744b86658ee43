#include <c10/util/Exception.h>
#include <fsdp/sampler.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace fsdp {

namespace {

// Neighbouring seeds and epochs give unrelated orders (splitmix64's last step).
uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

// Uniform in [0, bound). The standard specifies the engine's output, but not that of its distributions.
uint64_t draw(std::mt19937_64& engine, uint64_t bound) {
  const uint64_t uneven = (0 - bound) % bound;  // 2^64 mod bound: values below would favour small results
  uint64_t value = engine();
  while (value < uneven) value = engine();
  return value % bound;
}

// Fisher and Yates, from the back.
void shuffle(std::vector<size_t>& values, uint64_t seed) {
  std::mt19937_64 engine(seed);
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[draw(engine, i)]);
}

void write(torch::serialize::OutputArchive& archive, const char* key, uint64_t value) {
  archive.write(key, c10::IValue(static_cast<int64_t>(value)));
}

uint64_t read(torch::serialize::InputArchive& archive, const char* key) {
  c10::IValue value;
  archive.read(key, value);
  return static_cast<uint64_t>(value.toInt());
}

void check_same(const char* key, uint64_t saved, uint64_t mine) {
  TORCH_CHECK(saved == mine, "fsdp: the saved sampler has ", key, " ", saved, ", this one ", mine,
              "; the order of samples would be another one. Make the Sampler as it was, or start at an epoch "
              "with set_epoch()");
}

}  // namespace

Sampler::Sampler(const World& world, size_t dataset_size, const SamplerOptions& options)
    : Sampler(world.rank(), world.size(), dataset_size, options) {}

Sampler::Sampler(int rank, int ranks, size_t dataset_size, const SamplerOptions& options)
    : rank_(static_cast<size_t>(rank)), ranks_(static_cast<size_t>(ranks)), options_(options) {
  TORCH_CHECK(ranks > 0 && rank >= 0 && rank < ranks, "fsdp: a Sampler for rank ", rank, " of ", ranks);
  resize(dataset_size);
}

void Sampler::resize(size_t dataset_size) {
  dataset_size_ = dataset_size;
  start_ = 0;
  share_ = share();
  indices_.clear();
}

size_t Sampler::share() const {
  const size_t rest = dataset_size_ - std::min(dataset_size_, start_);
  return options_.drop_last ? rest / ranks_ : (rest + ranks_ - 1) / ranks_;
}

void Sampler::reset(std::optional<size_t> new_size) {
  if (new_size && *new_size != dataset_size_) {
    TORCH_CHECK(!resuming_, "fsdp: the saved sampler is in the middle of ", dataset_size_,
                " samples, the dataset has ", *new_size);
    resize(*new_size);
  }
  if (std::exchange(resuming_, false)) return;
  if (start_ + position_ > 0) set_epoch(epoch_ + 1);
}

void Sampler::set_epoch(size_t epoch) {
  epoch_ = epoch;
  position_ = 0;
  resuming_ = false;
  resize(dataset_size_);
}

std::optional<std::vector<size_t>> Sampler::next(size_t batch_size) {
  if (position_ >= share_ || batch_size == 0) return std::nullopt;
  if (indices_.empty()) order();
  const size_t end = std::min(share_, position_ + batch_size);
  std::vector<size_t> batch(indices_.begin() + static_cast<std::ptrdiff_t>(position_),
                            indices_.begin() + static_cast<std::ptrdiff_t>(end));
  position_ = end;
  return batch;
}

void Sampler::order() {
  std::vector<size_t> all(dataset_size_);
  std::iota(all.begin(), all.end(), size_t{0});
  if (options_.shuffle) shuffle(all, mix(mix(options_.seed) ^ epoch_));
  for (size_t i = 0; i < share_; ++i) indices_.push_back(all[(start_ + i * ranks_ + rank_) % dataset_size_]);
}

SamplerState Sampler::state_dict() const {
  return {.epoch = epoch_,
          .taken = start_ + position_ * ranks_,
          .dataset_size = dataset_size_,
          .options = options_};
}

void Sampler::load_state_dict(const SamplerState& state) {
  check_same("dataset_size", state.dataset_size, dataset_size_);
  check_same("seed", state.options.seed, options_.seed);
  check_same("shuffle", state.options.shuffle ? 1 : 0, options_.shuffle ? 1 : 0);
  check_same("drop_last", state.options.drop_last ? 1 : 0, options_.drop_last ? 1 : 0);
  set_epoch(state.epoch);
  start_ = state.taken % ranks_;
  share_ = share();
  position_ = std::min(state.taken / ranks_, share_);
  resuming_ = state.taken > 0 && position_ < share_;
}

void Sampler::save(torch::serialize::OutputArchive& archive) const {
  const SamplerState state = state_dict();
  write(archive, "epoch", state.epoch);
  write(archive, "taken", state.taken);
  write(archive, "dataset_size", state.dataset_size);
  write(archive, "seed", options_.seed);
  write(archive, "shuffle", options_.shuffle ? 1 : 0);
  write(archive, "drop_last", options_.drop_last ? 1 : 0);
}

void Sampler::load(torch::serialize::InputArchive& archive) {
  load_state_dict({.epoch = read(archive, "epoch"),
                   .taken = read(archive, "taken"),
                   .dataset_size = read(archive, "dataset_size"),
                   .options = {.shuffle = read(archive, "shuffle") != 0,
                               .seed = read(archive, "seed"),
                               .drop_last = read(archive, "drop_last") != 0}});
}

}  // namespace fsdp
