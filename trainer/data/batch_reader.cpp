#include "trainer/data/batch_reader.h"

#include <algorithm>
#include <utility>

#include "trainer/data/error.h"

namespace fsdp::data {

namespace {

Batch read_batch(const Dataset& dataset, const Order& order, const Share& share, uint64_t step,
                 uint64_t number) {
  const auto length = static_cast<size_t>(dataset.length());
  Batch batch{.rows = static_cast<int64_t>(share.batch_size), .length = dataset.length()};
  batch.tokens.resize(share.batch_size * length);
  batch.targets.resize(share.batch_size * length);
  for (uint64_t row = 0; row < share.batch_size; ++row)
    dataset.read(order.sample(step, share.index(number, row)),
                 std::span(batch.tokens).subspan(row * length, length),
                 std::span(batch.targets).subspan(row * length, length));
  batch.counted = std::ssize(batch.targets);
  if (dataset.has_mask())
    batch.counted -= std::count(batch.targets.begin(), batch.targets.end(), kIgnoredTarget);
  return batch;
}

}  // namespace

StepBatches read_step(const Dataset& dataset, const Order& order, const Share& share, uint64_t step) {
  StepBatches batches;
  const uint64_t count = share.microbatches(order.global_batch());
  batches.reserve(count);
  for (uint64_t number = 0; number < count; ++number)
    batches.push_back(read_batch(dataset, order, share, step, number));
  return batches;
}

BatchReader::BatchReader(std::shared_ptr<const Dataset> dataset, const Order& order, const Share& share,
                         uint64_t first_step, size_t depth)
    : dataset_(std::move(dataset)), order_(order), share_(share), depth_(depth), first_(first_step) {
  share_.check(order_.global_batch());
  if (depth_ == 0) throw DataError("0 steps read ahead; at least 1 is expected");
  if (order_.samples() != dataset_->samples())
    throw DataError("the order is of " + std::to_string(order_.samples()) + " samples, the data has " +
                    std::to_string(dataset_->samples()));
  thread_ = std::thread([this] { work(); });
}

BatchReader::~BatchReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

StepBatches BatchReader::read(uint64_t step) {
  std::unique_lock lock(mutex_);
  if (step != first_) {
    first_ = step;
    ready_.clear();
    ++restarts_;
    changed_.notify_all();
  }
  changed_.wait(lock, [this] { return !ready_.empty(); });
  Entry entry = std::move(ready_.front());
  ready_.pop_front();
  ++first_;
  changed_.notify_all();
  if (entry.error) std::rethrow_exception(entry.error);
  return std::move(entry.batches);
}

void BatchReader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || ready_.size() < depth_; });
    if (stopping_) return;
    const uint64_t step = first_ + ready_.size(), restarts = restarts_;
    lock.unlock();
    Entry entry;
    try {
      entry.batches = read_step(*dataset_, order_, share_, step);
    } catch (...) {
      entry.error = std::current_exception();
    }
    lock.lock();
    if (restarts != restarts_) continue;
    ready_.push_back(std::move(entry));
    changed_.notify_all();
  }
}

}  // namespace fsdp::data
