// Gather path: the shard lies in host memory. See Note [Offload].
#include <c10/core/StreamGuard.h>

#include <utility>

#include "transfer/flat.h"
#include "transfer/gather_path.h"
#include "transfer/host_shard.h"
#include "transfer/side_stream.h"

namespace fsdp::detail {

namespace {

// Uploads this rank's part of the slot, and gathers the others' parts beside it.
class FromHost final : public GatherPath {
 public:
  FromHost(const Comm* row, const at::Tensor& shard, std::shared_ptr<HostShard> host,
           std::shared_ptr<SideStream> side)
      : shard_(shard), host_(std::move(host)), side_(std::move(side)) {
    if (row != nullptr) row_ = *row;
  }

  SlotMemory memory(GatherFrom /*from*/) const override { return SlotMemory::arena; }

  at::Tensor start(const at::Tensor& slot, GatherFrom /*from*/, const std::string& label) override {
    const int64_t n = shard_.numel();
    const at::Tensor mine = row_ ? slot.narrow(0, row_->rank() * n, n) : slot;
    side_->copy(mine, host_->source());
    host_->uploads(side_->stream());
    uploading_ = true;
    if (row_) {
      const c10::StreamGuard behind(side_->stream());
      work_ = row_->all_gather(as_reals(slot), as_reals(mine), label);
    }
    return slot_ = slot;
  }
  void finish() override {
    if (!std::exchange(uploading_, false)) return;
    side_->wait();
    if (row_) std::exchange(work_, Work()).wait();
  }
  void release() override {
    finish();
    if (row_) row_->release(as_reals(slot_));
    slot_ = at::Tensor();
  }
  void drop() override {
    work_.drop();
    uploading_ = false;
    slot_ = at::Tensor();
  }

  void gather_master(const at::Tensor& whole, std::optional<int> root, const std::string& label) override {
    host_->wait_for_updates();
    host_->wait_for_uploads();
    if (row_)
      gather_exactly(*row_, shard_.to(device(), /*non_blocking=*/false, /*copy=*/true), whole, root, label);
    else if (whole.numel() > 0)
      whole.copy_(shard_);
  }

 private:
  c10::Device device() const { return side_->stream().device(); }

  std::optional<Comm> row_;  // none: the shard is the whole region
  at::Tensor shard_, slot_;
  std::shared_ptr<HostShard> host_;
  std::shared_ptr<SideStream> side_;
  bool uploading_ = false;
  Work work_;
};

}  // namespace

GatherPathPtr gather_from_host(const Comm* row, const at::Tensor& shard, std::shared_ptr<HostShard> host,
                               std::shared_ptr<SideStream> side) {
  return std::make_unique<FromHost>(row, shard, std::move(host), std::move(side));
}

}  // namespace fsdp::detail
