// Counts the calls of one model and tells other ranks which one this rank is in.
#pragma once

#include <fsdp/world.h>

#include <cstdint>
#include <string>

namespace fsdp::detail {

// See Note [Activities].
class CallActivity {
 public:
  // `type`: the module's, for runs with several models.
  CallActivity(const World& world, std::string type);

  void begin_forward(bool with_gradients);
  void begin_backward();
  // The forward or backward is over: the program is outside the model.
  void end();

  // "its 5th forward without gradients"; empty before the first call.
  const std::string& last() const { return last_; }

 private:
  void begin(std::string call);

  World world_;
  std::string type_;
  std::string last_;
  int number_;  // of this model among those of the run
  int64_t forwards_ = 0, evaluations_ = 0, backwards_ = 0;
};

}  // namespace fsdp::detail
