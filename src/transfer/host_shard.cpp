#include "transfer/host_shard.h"

#include <exception>
#include <string>
#include <utility>

#include "base/log.h"

namespace fsdp::detail {

HostShard::~HostShard() {
  try {
    wait_for_updates();
    wait_for_uploads();
  } catch (const std::exception& error) {
    log_warn(std::string("a shard in host memory is dropped: ") + error.what());
  }
}

const at::Tensor& HostShard::source() {
  TORCH_CHECK(!updated_,
              "fsdp: AdamW::step_in_backward(): a unit is read again in a backward that has updated "
              "it, which its plan did not have. Such a model must step after its backwards.");
  wait_for_updates();
  if (!std::exchange(used_, true)) order_ = promises_->number();
  if (!copy_.defined()) return shard_;
  if (stale()) {
    wait_for_uploads();
    copy_.copy_(shard_);
    copy_is_promised();
  }
  return copy_;
}

void HostShard::uploads(const c10::Stream& stream) { uploaded_.record(stream); }

void HostShard::wait_for_uploads() { uploaded_.synchronize(); }

void HostShard::written() {
  wait_for_updates();
  wait_for_uploads();
  written_ = true;
  used_ = false;
}

void HostShard::copy_is_promised() {
  written_ = false;
  version_ = shard_._version();
}

}  // namespace fsdp::detail
