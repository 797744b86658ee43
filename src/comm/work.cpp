#include <c10/util/Exception.h>
#include <fsdp/work.h>

#include <exception>
#include <utility>

#include "base/log.h"
#include "comm/timed_work.h"

namespace fsdp {

Work::Work(std::shared_ptr<detail::TimedWork> pending) : pending_(std::move(pending)) {}

Work& Work::operator=(Work&& other) noexcept {
  std::swap(pending_, other.pending_);
  return *this;
}

Work::~Work() {
  // While an exception unwinds it must not wait for other ranks: they may wait for this one.
  const bool drops = std::uncaught_exceptions() > 0 || (pending_ && pending_->foreign());
  if (drops && pending_ && pending_->drop()) return;
  try {
    wait();
  } catch (const std::exception& error) {
    // The group has failed and its next call throws the same; a destructor must not.
    detail::log_warn(error.what());
  }
}

void Work::wait() {
  if (const auto pending = std::exchange(pending_, nullptr)) pending->wait(std::nullopt);
}

void Work::drop() {
  if (pending_ && pending_->drop()) pending_ = nullptr;
  try {
    wait();
  } catch (const std::exception& error) {
    detail::log_warn(error.what());
  }
}

void Work::wait(std::chrono::milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "fsdp: wait with a timeout of ", timeout.count(),
              " ms; it must be positive");
  if (const auto pending = std::exchange(pending_, nullptr)) pending->wait(timeout);
}

}  // namespace fsdp
