#include "optim/visitors.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace fsdp::detail {

at::Tensor Visitors::on(c10::Device device, const at::Tensor& tensor, bool returns) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  const at::Tensor there = tensor.to(device, /*non_blocking=*/true);
  bytes_ += static_cast<int64_t>(there.nbytes());
  if (returns) out_.emplace_back(tensor, there);
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) devices_.push_back(device);
  return there;
}

void Visitors::send_back() {
  for (const auto& [host, there] : std::exchange(out_, {})) host.copy_(there, /*non_blocking=*/true);
  bytes_ = 0;
}

void Visitors::wait() const {
  for (const c10::Device device : devices_) {
    c10::Event sent(device.type());
    sent.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    sent.synchronize();
  }
}

}  // namespace fsdp::detail
