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

  // to = from, or to += from, behind what the current stream has issued. `to` may be read after wait().
  void start(const at::Tensor& to, const at::Tensor& from, bool adds);
  // The host waits for all.
  void wait();

 private:
  struct InFlight {
    at::Tensor from;
    c10::Event done;
  };

  c10::Stream stream_;
  std::shared_ptr<HostMemory> memory_;
  std::deque<InFlight> in_flight_;
  std::vector<std::pair<at::Tensor, at::Tensor>> sums_;  // to which is added what arrived beside it
};

}  // namespace fsdp::detail
