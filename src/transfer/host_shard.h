// CPU offload: a shard in host memory, of a model that computes on a device. See Note [Offload].
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>

#include "base/promises.h"

namespace fsdp::detail {

// Note [Offload]
// Shards, gradient shards and moments lie in pinned host memory: optimizers see CPU tensors. A gather uploads
// the shard. If the device computes in another dtype, there is a copy of the shard in that dtype, so that the
// bus carries no more than needed. fsdp::AdamW writes the copy in the same pass; after other writers it is
// made again when it is next needed. An update of a shard may be promised: reading the shard or its moments
// waits for it. Gathers wait only for the promise of their own unit, so that the forward of the first units
// overlaps the updates of the others. Memory that an upload still reads is not written.
class HostShard {
 public:
  // `copy`: undefined if the device computes in the shard's dtype.
  HostShard(const at::Tensor& shard, const at::Tensor& copy, c10::Device device,
            std::shared_ptr<Promises> promises)
      : shard_(shard), copy_(copy), uploaded_(device.type()), promises_(std::move(promises)) {}

  // Waits for updates that use it and for uploads from its memory.
  ~HostShard();
  HostShard(const HostShard&) = delete;
  HostShard& operator=(const HostShard&) = delete;

  // The tensor to upload, in its newest state.
  const at::Tensor& source();
  // An upload was issued on `stream`.
  void uploads(const c10::Stream& stream);
  // The host waits until every upload is done.
  void wait_for_uploads();
  // The shard is about to be written, or was.
  void written();

  // For a writer of shard and copy in one pass, maybe later: call it after written(), for every write.
  const at::Tensor& copy() const { return copy_; }
  // True if the copy does not match the shard, or there is none.
  bool stale() const { return !copy_.defined() || written_ || shard_._version() != version_; }
  void copy_is_promised();
  // The promised update writes the shard without the copy.
  void copy_is_old() { written_ = true; }
  // yes: an update belongs to the step after the current backward; no upload may start until that ends.
  void updated_in_cycle(bool yes) { updated_ = yes; }
  Promises& promises() { return *promises_; }
  Promises::Key key() const { return this; }
  // The order in which shards were first uploaded since their last update; the next step repeats it.
  int64_t order() const { return order_; }
  void wait_for_updates() { promises_->wait(key()); }

 private:
  at::Tensor shard_, copy_;
  bool written_ = true;   // since the copy was made
  int64_t version_ = -1;  // version of the shard when the copy was made
  int64_t order_ = 0;
  bool used_ = false;  // uploaded since the last update
  bool updated_ = false;
  c10::Event uploaded_;
  std::shared_ptr<Promises> promises_;
};

}  // namespace fsdp::detail
