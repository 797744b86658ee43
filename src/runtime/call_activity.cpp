#include "runtime/call_activity.h"

#include <utility>

#include "comm/heartbeat/heartbeat.h"
#include "launch/world_state.h"

namespace fsdp::detail {

CallActivity::CallActivity(const World& world, std::string type)
    : world_(world), type_(std::move(type)), number_(++world_.state().models) {}

void CallActivity::begin_forward(bool with_gradients) {
  begin(with_gradients ? ordinal(++forwards_) + " forward"
                       : ordinal(++evaluations_) + " forward without gradients");
}

void CallActivity::begin_backward() {
  begin(ordinal(++backwards_) + " backward");
  heartbeat_of(world_)->note_backward();
}

void CallActivity::begin(std::string call) {
  last_ = "its " + std::move(call);
  if (world_.state().models > 1) last_ += " of model " + std::to_string(number_) + " (" + type_ + ")";
  world_.state().activity->set("in " + last_);
}

void CallActivity::end() { world_.state().activity->set("outside the model, after " + last_); }

}  // namespace fsdp::detail
