// A shard in host memory, of a model that computes on a device. See Note [Offload].
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>

#include "base/promises.h"

namespace fsdp::detail {

// Note [Offload]
// Shards, and with them gradient shards and moments, lie in pinned host memory: optimizers see CPU tensors. A
// gather uploads. Where the device computes in another dtype there is a copy of the shard in that dtype, so
// that the bus carries no more than needed; fsdp::AdamW writes it in the same pass, for other writers it is
// made again when it is next wanted. An update of a shard may be promised: whoever reads the shard, or its
// moments, waits for it; gathers wait for the promise of their own unit alone, so that the forward of the
// first units runs beside the updates of the others. Nobody writes what an upload still reads.
class HostShard {
 public:
  // `copy`: undefined where the device computes in the shard's dtype.
  HostShard(const at::Tensor& shard, const at::Tensor& copy, c10::Device device,
            std::shared_ptr<Promises> promises)
      : shard_(shard), copy_(copy), uploaded_(device.type()), promises_(std::move(promises)) {}

  // Waits for both: for updates, and for uploads, that use it or its memory.
  ~HostShard();
  HostShard(const HostShard&) = delete;
  HostShard& operator=(const HostShard&) = delete;

  // What is to be uploaded, in its newest state.
  const at::Tensor& source();
  // An upload was issued on `stream`.
  void uploads(const c10::Stream& stream);
  // The host waits until every upload is done.
  void wait_for_uploads();
  // The shard is about to be written, or was.
  void written();

  // Who writes shard and copy in one pass, maybe later: after written(), and for every write.
  const at::Tensor& copy() const { return copy_; }
  // The copy is not what the shard holds, or there is none.
  bool stale() const { return !copy_.defined() || written_ || shard_._version() != version_; }
  void copy_is_promised();
  // The shard is written without it, by promise.
  void copy_is_old() { written_ = true; }
  // An update belongs to the step after the backward that goes on: nothing may be uploaded until that ends.
  void updated_in_cycle(bool yes) { updated_ = yes; }
  Promises& promises() { return *promises_; }
  Promises::Key key() const { return this; }
  // In which shards were first uploaded since they were updated: the next time it will be the same.
  int64_t order() const { return order_; }
  void wait_for_updates() { promises_->wait(key()); }

 private:
  at::Tensor shard_, copy_;
  bool written_ = true;   // since the copy was made
  int64_t version_ = -1;  // of the shard, then
  int64_t order_ = 0;
  bool used_ = false;  // uploaded since the last update
  bool updated_ = false;
  c10::Event uploaded_;
  std::shared_ptr<Promises> promises_;
};

}  // namespace fsdp::detail
