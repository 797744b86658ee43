// Gather path: a cast of a shard that is the whole region.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "transfer/gather_path.h"
#include "transfer/side_stream.h"

namespace fsdp::detail {

SideStream::SideStream(c10::Device device)
    : stream_(c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      reached_(device.type()),
      copied_(device.type()) {}

c10::Stream SideStream::current() const {
  return c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device());
}

void SideStream::copy(const at::Tensor& to, const at::Tensor& from) {
  reached_.record(current());
  reached_.block(stream_);
  const c10::StreamGuard guard(stream_);
  to.copy_(from, /*non_blocking=*/true);
  copied_.record(stream_);
}

void SideStream::wait() { copied_.block(current()); }

namespace {

class Cast final : public GatherPath {
 public:
  Cast(const at::Tensor& shard, std::shared_ptr<SideStream> side) : shard_(shard), side_(std::move(side)) {}

  SlotMemory memory(GatherFrom /*from*/) const override { return SlotMemory::arena; }

  at::Tensor start(const at::Tensor& slot, GatherFrom /*from*/, const std::string& /*label*/) override {
    if (side_)
      side_->copy(slot, shard_);
    else
      slot.copy_(shard_);
    copying_ = true;
    return slot;
  }
  void finish() override {
    if (std::exchange(copying_, false) && side_) side_->wait();
  }
  void release() override { finish(); }  // the slot is still being filled
  void drop() override { copying_ = false; }

  void gather_master(const at::Tensor& whole, std::optional<int> /*root*/,
                     const std::string& /*label*/) override {
    if (whole.numel() > 0) whole.copy_(shard_);
  }

 private:
  at::Tensor shard_;
  std::shared_ptr<SideStream> side_;
  bool copying_ = false;
};

}  // namespace

GatherPathPtr gather_by_cast(const at::Tensor& shard, std::shared_ptr<SideStream> side) {
  return std::make_unique<Cast>(shard, std::move(side));
}

}  // namespace fsdp::detail
