// Sums on their way from a device to gradient shards in host memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "transfer/host_memory.h"

namespace fsdp::detail {

class Downloads {
 public:
  Downloads(c10::Device device, std::shared_ptr<HostMemory> memory);

  // Waits: the device writes to host memory that goes.
  ~Downloads();
  Downloads(const Downloads&) = delete;
  Downloads& operator=(const Downloads&) = delete;

  // to = from, or to += from, behind what the current stream has issued. `to` may be read after wait().
  // What is returned is reached then, if it is not added to.
  std::shared_ptr<c10::Event> start(const at::Tensor& to, const at::Tensor& from, bool adds);
  bool adds() const { return !sums_.empty(); }  // some wait() will
  // The host waits for all.
  void wait();
  // Streams that issued a download wait until the device's memory of all `but` the last ones was read, and
  // may be used again.
  void let_go(size_t but = 0);

 private:
  struct InFlight {
    at::Tensor from;
    std::shared_ptr<c10::Event> done;
    c10::Stream issued_on;  // whose memory `from` is
  };

  c10::Stream current() const;

  c10::Stream stream_;
  std::shared_ptr<HostMemory> memory_;
  std::deque<InFlight> in_flight_;
  std::vector<std::pair<at::Tensor, at::Tensor>> sums_;  // to which is added what arrived beside it
};

}  // namespace fsdp::detail
