#include "transfer/downloads.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <string>

#include "base/log.h"

namespace fsdp::detail {

namespace {

constexpr size_t kAtOnce = 2;  // sums whose device memory is still to be read

}  // namespace

Downloads::Downloads(c10::Device device, std::shared_ptr<HostMemory> memory)
    : stream_(c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device, /*isHighPriority=*/false)),
      memory_(std::move(memory)) {}

Downloads::~Downloads() {
  try {
    if (!in_flight_.empty()) in_flight_.back().done->synchronize();
  } catch (const std::exception& error) {
    log_warn(std::string("gradients on their way to host memory are dropped: ") + error.what());
  }
}

// The memory of `from` goes back to the allocator, which may give it to the current stream again: that stream
// waits until the memory was read.
std::shared_ptr<c10::Event> Downloads::start(const at::Tensor& to, const at::Tensor& from, bool adds) {
  const auto done = std::make_shared<c10::Event>(stream_.device_type());
  if (to.numel() == 0) return done;
  at::Tensor place = to;
  if (adds) {
    place = memory_->take(to.numel(), to.scalar_type());
    sums_.emplace_back(to, place);
  }
  c10::Event reached(stream_.device_type());
  reached.record(current());
  reached.block(stream_);
  {
    const c10::StreamGuard guard(stream_);
    place.copy_(from, /*non_blocking=*/true);
    done->record(stream_);
  }
  in_flight_.push_back({.from = from, .done = done, .issued_on = current()});
  let_go(kAtOnce);
  return done;
}

c10::Stream Downloads::current() const {
  return c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device());
}

void Downloads::let_go(size_t but) {
  for (; in_flight_.size() > but; in_flight_.pop_front())
    in_flight_.front().done->block(in_flight_.front().issued_on);
}

void Downloads::wait() {
  if (in_flight_.empty()) return;
  in_flight_.back().done->synchronize();
  in_flight_.clear();
  for (const auto& [sum, part] : std::exchange(sums_, {})) sum.add_(part);
}

}  // namespace fsdp::detail
