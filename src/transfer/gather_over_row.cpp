// Gather path: an all-gather over the ranks of the row.
#include <utility>

#include "transfer/flat.h"
#include "transfer/gather_path.h"

namespace fsdp::detail {

void gather_exactly(Comm& row, const at::Tensor& shard, const at::Tensor& whole, std::optional<int> root,
                    const std::string& label) {
  if (!root) {
    row.all_gather(as_reals(whole), as_reals(shard), label).wait();
    return;
  }
  if (row.rank() != *root) {
    row.send(as_reals(shard), *root, label).wait();
    return;
  }
  const int64_t n = shard.numel();
  for (int r = 0; r < row.size(); ++r) {
    const at::Tensor place = whole.narrow(0, r * n, n);
    if (r == *root)
      place.copy_(shard);
    else
      row.recv(as_reals(place), r, label).wait();
  }
}

namespace {

class OverRow final : public GatherPath {
 public:
  OverRow(const Comm& row, const at::Tensor& shard) : row_(row), shard_(shard) {}

  SlotMemory memory(GatherFrom /*from*/) const override { return SlotMemory::arena; }

  at::Tensor start(const at::Tensor& slot, GatherFrom /*from*/, const std::string& label) override {
    work_ = row_.all_gather(as_reals(slot), as_reals(shard_), label);
    return slot_ = slot;
  }
  void finish() override { std::exchange(work_, Work()).wait(); }
  void release() override {
    finish();
    row_.release(as_reals(std::exchange(slot_, at::Tensor())));
  }
  void drop() override {
    work_.drop();
    slot_ = at::Tensor();
  }

  void gather_master(const at::Tensor& whole, std::optional<int> root, const std::string& label) override {
    gather_exactly(row_, shard_, whole, root, label);
  }

 private:
  Comm row_;
  at::Tensor shard_, slot_;
  Work work_;
};

}  // namespace

GatherPathPtr gather_over_row(const Comm& row, const at::Tensor& shard) {
  return std::make_unique<OverRow>(row, shard);
}

}  // namespace fsdp::detail
