// Gather path: an all-gather of encoded shards, which every rank decodes into its own memory.
#include <utility>

#include "transfer/codec_transfers.h"
#include "transfer/flat.h"
#include "transfer/gather_path.h"

namespace fsdp::detail {

namespace {

class ThroughCodec final : public GatherPath {
 public:
  ThroughCodec(const Comm& row, const at::Tensor& shard, std::shared_ptr<const Codec> codec)
      : row_(row), shard_(shard), codec_(std::move(codec)) {}

  SlotMemory memory(GatherFrom /*from*/) const override { return SlotMemory::arena; }

  at::Tensor start(const at::Tensor& slot, GatherFrom /*from*/, const std::string& label) override {
    moving_ = start_gather(row_, *codec_, as_reals(shard_), label);
    return slot_ = slot;
  }
  void finish() override {
    if (!moving_) return;
    finish_gather(*moving_, *codec_, as_reals(slot_));
    moving_.reset();
  }
  void release() override {
    if (moving_) moving_->work.wait();
    moving_.reset();
    slot_ = at::Tensor();
  }
  void drop() override {
    if (moving_) moving_->work.drop();
    moving_.reset();
    slot_ = at::Tensor();
  }

  void gather_master(const at::Tensor& whole, std::optional<int> root, const std::string& label) override {
    gather_exactly(row_, shard_, whole, root, label);
  }

  int64_t wire_bytes() const override { return moving_ ? static_cast<int64_t>(moving_->wires.nbytes()) : 0; }

 private:
  Comm row_;
  at::Tensor shard_, slot_;
  std::shared_ptr<const Codec> codec_;
  std::optional<EncodedGather> moving_;
};

}  // namespace

GatherPathPtr gather_through_codec(const Comm& row, const at::Tensor& shard,
                                   std::shared_ptr<const Codec> codec) {
  return std::make_unique<ThroughCodec>(row, shard, std::move(codec));
}

}  // namespace fsdp::detail
