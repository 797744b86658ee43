// Visitors: gradients and moments from host memory, on a device while their parameter is updated there.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace fsdp::detail {

class Visitors {
 public:
  // `tensor`, or a copy in the memory of `device`. `returns`: the copy is written, and must be copied back.
  at::Tensor on(c10::Device device, const at::Tensor& tensor, bool returns);
  // True if enough copies exist: queued work should run, and the copies go.
  bool crowded() const { return bytes_ > kMost; }
  // Copies back; all that writes the copies has been issued on the current stream.
  void send_back();
  // The host may read the tensors that were copied back.
  void wait() const;

 private:
  static constexpr int64_t kMost = int64_t{1} << 28;

  std::vector<std::pair<at::Tensor, at::Tensor>> out_;  // host, device
  int64_t bytes_ = 0;
  std::vector<c10::Device> devices_;  // devices with copies
};

}  // namespace fsdp::detail
