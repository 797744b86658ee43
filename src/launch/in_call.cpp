#include "launch/in_call.h"

#include "launch/world_state.h"

namespace fsdp::detail {

InCall::InCall(const World& world, const std::string& call)
    : world_(world), before_(world_.state().activity->get()) {
  world_.state().activity->set("in " + call);
}

InCall::~InCall() { world_.state().activity->set(std::move(before_)); }

InMeeting::InMeeting(const World& world, const std::string& call) : world_(world) {
  world_.state().activity->begin_meeting("in " + call);
}

InMeeting::~InMeeting() { world_.state().activity->end_meeting(); }

}  // namespace fsdp::detail
