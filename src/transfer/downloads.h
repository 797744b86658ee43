// Downloads of sums from a device to gradient shards in host memory.
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

  // Waits, since the device still writes to host memory that is about to go.
  ~Downloads();
  Downloads(const Downloads&) = delete;
  Downloads& operator=(const Downloads&) = delete;

  // to = from, or to += from, behind the current stream's work. `to` may be read after wait(). Returns the
  // completion event; with `adds`, only wait() completes.
  std::shared_ptr<c10::Event> start(const at::Tensor& to, const at::Tensor& from, bool adds);
  bool adds() const { return !sums_.empty(); }  // some download is added by wait()
  // The host waits for all downloads.
  void wait();
  // Streams that issued downloads wait until these have read the device's memory, which may then be used
  // again. The last `but` downloads are left out.
  void let_go(size_t but = 0);

 private:
  struct InFlight {
    at::Tensor from;
    std::shared_ptr<c10::Event> done;
    c10::Stream issued_on;  // the stream that `from` was allocated on
  };

  c10::Stream current() const;

  c10::Stream stream_;
  std::shared_ptr<HostMemory> memory_;
  std::deque<InFlight> in_flight_;
  std::vector<std::pair<at::Tensor, at::Tensor>> sums_;  // first += second, in wait()
};

}  // namespace fsdp::detail
