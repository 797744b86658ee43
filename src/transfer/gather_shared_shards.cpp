// Gather path: the shards of all ranks already lie side by side.
//
// Note [Shared shards]
// If ranks share memory and the compute dtype of a region is the dtype of its shard, the shards of all ranks
// lie side by side, in the order of the region. An all-gather is then an agreement that all have written: no
// byte is copied, and no slot is needed. A shard exposed to peers (peers_may_read) may be written again once
// every rank has released it. Ranks release it when a call of the model without gradients, or the last
// backward of a cycle, has ended on all ranks, and when full_params() has copied it; otherwise it is claimed
// before a write that the observer sees.
#include <utility>

#include "transfer/flat.h"
#include "transfer/gather_path.h"

namespace fsdp::detail {

namespace {

class SharedShards final : public GatherPath {
 public:
  SharedShards(const Comm& row, const at::Tensor& shard, const at::Tensor& whole)
      : row_(row), shard_(shard), whole_(whole) {}

  SlotMemory memory(GatherFrom /*from*/) const override { return SlotMemory::none; }

  at::Tensor start(const at::Tensor& /*slot*/, GatherFrom /*from*/, const std::string& label) override {
    work_ = row_.all_gather(as_reals(whole_), as_reals(shard_), label);
    gathered_ = true;
    return whole_;
  }
  void finish() override { std::exchange(work_, Work()).wait(); }
  void release() override {
    finish();
    gathered_ = false;
    row_.release(as_reals(whole_));
  }
  void drop() override {
    gathered_ = false;
    work_.drop();
  }

  void gather_master(const at::Tensor& whole, std::optional<int> /*root*/,
                     const std::string& label) override {
    row_.all_gather(as_reals(whole_), as_reals(shard_), label + ": whole").wait();
    if (whole.numel() > 0) whole.copy_(whole_);
    // Peers must not write to a unit that is still gathered, until it is released.
    if (!gathered_) row_.release(as_reals(whole_));
  }

  bool peers_read_shard() const override { return true; }
  void claim(const std::string& label) override { row_.claim(as_reals(whole_), label); }

 private:
  Comm row_;
  at::Tensor shard_, whole_;
  Work work_;
  bool gathered_ = false;
};

}  // namespace

GatherPathPtr gather_shared_shards(const Comm& row, const at::Tensor& shard, const at::Tensor& whole) {
  return std::make_unique<SharedShards>(row, shard, whole);
}

}  // namespace fsdp::detail
