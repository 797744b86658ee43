// Gradients and moments that live in host memory, on a device while their parameter is updated there.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace fsdp::detail {

class Visitors {
 public:
  // `tensor`, or what it holds in the memory of `device`. `returns`: it is written there, and goes back.
  at::Tensor on(c10::Device device, const at::Tensor& tensor, bool returns);
  // Enough of them are there: what is queued should run, and they should go.
  bool crowded() const { return bytes_ > kMost; }
  // Everything that writes them has been issued on the current stream.
  void send_back();
  // The host may read what went back.
  void wait() const;

 private:
  static constexpr int64_t kMost = int64_t{1} << 28;

  std::vector<std::pair<at::Tensor, at::Tensor>> out_;  // host, device
  int64_t bytes_ = 0;
  std::vector<c10::Device> devices_;  // that were visited
};

}  // namespace fsdp::detail
