#include "runtime/streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace fsdp::detail {

namespace {

c10::Stream current_on(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

bool StreamSet::join() {
  if (!used_) return false;
  const c10::Stream now = current_on(device_);
  if (std::find(streams_.begin(), streams_.end(), now) != streams_.end()) return false;
  streams_.push_back(now);
  return true;
}

template <class Fn>
void StreamSet::for_others(Fn fn) const {
  if (streams_.empty()) return;
  const c10::Stream now = current_on(device_);
  for (const c10::Stream& other : streams_)
    if (other != now) fn(now, other);
}

void StreamSet::wait_for_others() const {
  for_others([&](const c10::Stream& now, const c10::Stream& other) {
    c10::Event reached(device_.type());
    reached.record(other);
    reached.block(now);
  });
}

void StreamSet::hold_others() const {
  for_others([&](const c10::Stream& now, const c10::Stream& other) {
    c10::Event reached(device_.type());
    reached.record(now);
    reached.block(other);
  });
}

}  // namespace fsdp::detail
