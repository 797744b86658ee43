#include "comm/shared/ops.h"

#include <algorithm>

#include "kernels/cpu/stream_copy.h"
#include "kernels/cpu/tree_sum.h"

namespace fsdp::detail {

namespace {

constexpr size_t kWholeBelow = 16 * 1024;  // all_reduce: below this every rank sums all, not only its part

// A range cut into equal chunks; the last may be shorter.
struct Chunks {
  size_t total;
  size_t chunk;

  int count() const { return static_cast<int>(std::max<size_t>(1, (total + chunk - 1) / chunk)); }
  size_t start(int i) const { return static_cast<size_t>(i) * chunk; }
  size_t length(int i) const { return std::min(chunk, total - std::min(total, start(i))); }
};

// Elements per rank that fit into a bank if each rank gets a part of it.
size_t part_elements(int size, size_t element) {
  constexpr size_t kMultiple = 64;  // keeps parts on their own cache lines
  return std::max<size_t>(kMultiple,
                          kBankBytes / (static_cast<size_t>(size) * element) / kMultiple * kMultiple);
}

class GatherOp final : public RoundOp {
 public:
  GatherOp(const ControlView& view, int rank, Bytes slot, const char* shard)
      : view_(view),
        rank_(rank),
        slot_(slot),
        shard_(shard),
        part_(slot.size / static_cast<size_t>(view.size())),
        chunks_{part_, kBankBytes} {}

  int rounds() const override { return chunks_.count(); }
  bool staged() const override { return true; }

  void publish(int round, char* bank) override {
    const size_t start = chunks_.start(round);
    const size_t bytes = chunks_.length(round);
    stream_copy(bank, shard_ + start, bytes);
    char* own = slot_.data + static_cast<size_t>(rank_) * part_ + start;
    if (own != shard_ + start) stream_copy(own, shard_ + start, bytes);
  }

  void consume(int round, int bank) override {
    for (int r = 0; r < view_.size(); ++r)
      if (r != rank_)
        stream_copy(slot_.data + static_cast<size_t>(r) * part_ + chunks_.start(round), view_.bank(r, bank),
                    chunks_.length(round));
  }

 private:
  const ControlView& view_;
  int rank_;
  Bytes slot_;
  const char* shard_;
  size_t part_;
  Chunks chunks_;
};

// Bank: [W][chunk], one chunk for each rank's part of the result.
class ReduceScatterOp final : public RoundOp {
 public:
  ReduceScatterOp(const ControlView& view, int rank, char* output, Bytes input, DType type, double scale)
      : view_(view),
        rank_(rank),
        output_(output),
        input_(input.data),
        type_(type),
        scale_(scale),
        element_(size_of(type)),
        part_(input.size / static_cast<size_t>(view.size())),
        chunks_{part_, part_elements(view.size(), size_of(type)) * size_of(type)} {}

  int rounds() const override { return chunks_.count(); }
  bool staged() const override { return true; }

  void publish(int round, char* bank) override {
    for (int r = 0; r < view_.size(); ++r)
      if (r != rank_) stream_copy(bank + place(r), input(r, round), chunks_.length(round));
  }

  void consume(int round, int bank) override {
    std::vector<const void*> sources;
    for (int r = 0; r < view_.size(); ++r)
      sources.push_back(r == rank_ ? input(r, round) : view_.bank(r, bank) + place(rank_));
    tree_sum(output_ + chunks_.start(round), sources.data(), view_.size(), chunks_.length(round) / element_,
             type_, scale_);
  }

 private:
  size_t place(int rank) const { return static_cast<size_t>(rank) * chunks_.chunk; }
  const char* input(int rank, int round) const {
    return input_ + static_cast<size_t>(rank) * part_ + chunks_.start(round);
  }

  const ControlView& view_;
  int rank_;
  char* output_;
  const char* input_;
  DType type_;
  double scale_;
  size_t element_;
  size_t part_;
  Chunks chunks_;
};

// Short tensors: every rank publishes and sums everything.
class SmallAllReduceOp final : public RoundOp {
 public:
  SmallAllReduceOp(const ControlView& view, Bytes tensor, DType type, double scale)
      : view_(view), tensor_(tensor), type_(type), scale_(scale) {}

  bool staged() const override { return true; }
  void publish(int, char* bank) override { stream_copy(bank, tensor_.data, tensor_.size); }

  void consume(int, int bank) override {
    std::vector<const void*> sources;
    for (int r = 0; r < view_.size(); ++r) sources.push_back(view_.bank(r, bank));
    tree_sum(tensor_.data, sources.data(), view_.size(), tensor_.size / size_of(type_), type_, scale_);
  }

 private:
  const ControlView& view_;
  Bytes tensor_;
  DType type_;
  double scale_;
};

// Long tensors, chunk by chunk: an even round sums this rank's part of the chunk, the odd one after it
// spreads the sums.
class AllReduceOp final : public RoundOp {
 public:
  AllReduceOp(const ControlView& view, int rank, Bytes tensor, DType type, double scale)
      : view_(view),
        rank_(rank),
        tensor_(tensor),
        type_(type),
        scale_(scale),
        element_(size_of(type)),
        part_(part_elements(view.size(), element_) * element_),
        chunks_{tensor.size, part_ * static_cast<size_t>(view.size())} {}

  int rounds() const override { return 2 * chunks_.count(); }
  bool staged() const override { return true; }
  bool pipelined() const override { return false; }

  void publish(int round, char* bank) override {
    const Bytes chunk = this->chunk(round / 2);
    const Bytes what = round % 2 == 0 ? chunk : part(chunk, rank_);
    stream_copy(bank, what.data, what.size);
  }

  void consume(int round, int bank) override {
    const Bytes chunk = this->chunk(round / 2);
    if (round % 2 == 0) return sum(chunk, bank);
    for (int r = 0; r < view_.size(); ++r) {
      const Bytes theirs = part(chunk, r);
      if (r != rank_) stream_copy(theirs.data, view_.bank(r, bank), theirs.size);
    }
  }

 private:
  Bytes chunk(int i) const { return {tensor_.data + chunks_.start(i), chunks_.length(i)}; }

  // The last chunk may end inside a part, or before it.
  Bytes part(Bytes chunk, int rank) const {
    const size_t start = std::min(chunk.size, static_cast<size_t>(rank) * part_);
    return {chunk.data + start, std::min(part_, chunk.size - start)};
  }

  void sum(Bytes chunk, int bank) {
    const Bytes own = part(chunk, rank_);
    std::vector<const void*> sources;
    for (int r = 0; r < view_.size(); ++r) sources.push_back(view_.bank(r, bank) + (own.data - chunk.data));
    tree_sum(own.data, sources.data(), view_.size(), own.size / element_, type_, scale_);
  }

  const ControlView& view_;
  int rank_;
  Bytes tensor_;
  DType type_;
  double scale_;
  size_t element_;
  size_t part_;
  Chunks chunks_;
};

class BroadcastOp final : public RoundOp {
 public:
  BroadcastOp(const ControlView& view, int rank, Bytes tensor, int root)
      : view_(view), rank_(rank), tensor_(tensor), root_(root), chunks_{tensor.size, kBankBytes} {}

  int rounds() const override { return chunks_.count(); }
  bool staged() const override { return true; }

  void publish(int round, char* bank) override {
    if (rank_ == root_) stream_copy(bank, tensor_.data + chunks_.start(round), chunks_.length(round));
  }
  void consume(int round, int bank) override {
    if (rank_ != root_)
      stream_copy(tensor_.data + chunks_.start(round), view_.bank(root_, bank), chunks_.length(round));
  }

 private:
  const ControlView& view_;
  int rank_;
  Bytes tensor_;
  int root_;
  Chunks chunks_;
};

class SharedGatherOp final : public RoundOp {
 public:
  SharedGatherOp(char* part, const char* shard, size_t bytes, std::vector<Completion> before)
      : part_(part), shard_(shard), bytes_(bytes), before_(std::move(before)) {}

  bool may_publish() const override {
    return std::all_of(before_.begin(), before_.end(), [](const Completion& c) { return c.reached(); });
  }
  void publish(int, char*) override { stream_copy(part_, shard_, bytes_); }

 private:
  char* part_;
  const char* shard_;
  size_t bytes_;
  std::vector<Completion> before_;
};

class SharedReduceScatterOp final : public RoundOp {
 public:
  SharedReduceScatterOp(Gate& gate, AllocationPtr allocation, Extent& extent, char* output, DType type,
                        double scale)
      : gate_(gate),
        allocation_(std::move(allocation)),
        extent_(extent),
        output_(output),
        type_(type),
        scale_(scale) {}

  void consume(int, int) override {
    const int size = gate_.view().size();
    const size_t part = extent_.bytes / static_cast<size_t>(size);
    const size_t start = extent_.offset + static_cast<size_t>(gate_.rank()) * part;
    std::vector<const void*> sources;
    for (int r = 0; r < size; ++r) sources.push_back(allocation_->block(r) + start);
    tree_sum(output_, sources.data(), size, part / size_of(type_), type_, scale_);
    if (extent_.finish()) gate_.ring(kCompletions);
  }

 private:
  Gate& gate_;
  AllocationPtr allocation_;
  Extent& extent_;
  char* output_;
  DType type_;
  double scale_;
};

}  // namespace

RoundOpPtr make_barrier_op() { return std::make_shared<RoundOp>(); }

RoundOpPtr make_gather_op(const ControlView& view, int rank, Bytes slot, const char* shard) {
  return std::make_shared<GatherOp>(view, rank, slot, shard);
}

RoundOpPtr make_reduce_scatter_op(const ControlView& view, int rank, char* output, Bytes input, DType type,
                                  double scale) {
  return std::make_shared<ReduceScatterOp>(view, rank, output, input, type, scale);
}

RoundOpPtr make_all_reduce_op(const ControlView& view, int rank, Bytes tensor, DType type, double scale) {
  if (tensor.size <= kWholeBelow) return std::make_shared<SmallAllReduceOp>(view, tensor, type, scale);
  return std::make_shared<AllReduceOp>(view, rank, tensor, type, scale);
}

RoundOpPtr make_broadcast_op(const ControlView& view, int rank, Bytes tensor, int root) {
  return std::make_shared<BroadcastOp>(view, rank, tensor, root);
}

RoundOpPtr make_shared_gather_op(char* part, const char* shard, size_t bytes,
                                 std::vector<Completion> before) {
  return std::make_shared<SharedGatherOp>(part, shard, bytes, std::move(before));
}

RoundOpPtr make_shared_reduce_scatter_op(Gate& gate, AllocationPtr allocation, Extent& extent, char* output,
                                         DType type, double scale) {
  return std::make_shared<SharedReduceScatterOp>(gate, std::move(allocation), extent, output, type, scale);
}

}  // namespace fsdp::detail
