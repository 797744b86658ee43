// Reads the batches of coming steps on a thread of its own while the present one is trained.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trainer/data/dataset.h"
#include "trainer/data/order.h"

namespace fsdp::data {

// One microbatch, rows one after another.
struct Batch {
  int64_t rows = 0, length = 0;
  std::vector<int64_t> tokens = {};   // [rows, length]
  std::vector<int64_t> targets = {};  // [rows, length], kIgnoredTarget where the loss does not count
  int64_t counted = 0;                // targets that count in the loss
};

// Microbatches of one step on one rank, in the order of their backward passes.
using StepBatches = std::vector<Batch>;

// Reads without a thread. Throws what Dataset::read() throws.
StepBatches read_step(const Dataset& dataset, const Order& order, const Share& share, uint64_t step);

// Has no state that a checkpoint needs: the batches of a step depend on its number only. What the thread
// throws while it reads a step is thrown by read() of that step. The destructor ends the thread; a read in
// progress is finished first. One thread at a time may call read().
class BatchReader {
 public:
  // `depth`: steps read ahead, at least 1. The thread begins with `first_step`. Throws DataError if
  // dataset, order and share do not fit together.
  BatchReader(std::shared_ptr<const Dataset> dataset, const Order& order, const Share& share,
              uint64_t first_step = 0, size_t depth = 2);
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  // The batches of any step, counted from the beginning of training. Steps that follow each other are
  // read ahead; after any other step, reading ahead begins anew there.
  StepBatches read(uint64_t step);

 private:
  struct Entry {
    StepBatches batches;
    std::exception_ptr error;
  };

  void work();

  std::shared_ptr<const Dataset> dataset_;
  Order order_;
  Share share_;
  size_t depth_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> ready_;  // steps first_, first_ + 1, ...
  uint64_t first_;           // the step that read() is expected to ask for
  uint64_t restarts_ = 0;    // a step read before the last restart is thrown away
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace fsdp::data
