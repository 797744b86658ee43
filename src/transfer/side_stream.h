// A stream of one model, beside the user's, for casts and uploads of whole shards.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace fsdp::detail {

class SideStream {
 public:
  explicit SideStream(c10::Device device);

  // to = from, on this stream, behind the current stream's work.
  void copy(const at::Tensor& to, const at::Tensor& from);
  // The current stream waits for every copy so far.
  void wait();
  const c10::Stream& stream() const { return stream_; }

 private:
  c10::Stream current() const;

  c10::Stream stream_;
  c10::Event reached_;  // the current stream's position when a copy was issued
  c10::Event copied_;   // the copy issued last
};

}  // namespace fsdp::detail
