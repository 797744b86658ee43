// Scopes of calls that other ranks may have to be told of. See Note [Activities].
#pragma once

#include <fsdp/world.h>

#include <string>

namespace fsdp::detail {

// While it lives, this rank is "in `call`", for example "in clip_grad_norm_()".
class InCall {
 public:
  InCall(const World& world, const std::string& call);
  ~InCall();
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  World world_;
  std::string before_;
};

// The same for a call in which ranks meet outside of the groups of training: save(), load(), World::mean(),
// GradScaler::step(). Meetings do not nest.
class InMeeting {
 public:
  InMeeting(const World& world, const std::string& call);
  ~InMeeting();
  InMeeting(const InMeeting&) = delete;
  InMeeting& operator=(const InMeeting&) = delete;

 private:
  World world_;
};

}  // namespace fsdp::detail
