// The state in which we run operators of our own: unobserved, unrecorded by autograd.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

namespace fsdp::detail {

// While one lives on this thread, the observer looks away.
class Quiet {
 public:
  Quiet() { ++depth; }
  ~Quiet() { --depth; }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

  static bool on() { return depth > 0; }

 private:
  static inline thread_local int depth = 0;
  c10::InferenceMode no_inference_{false};
  at::NoGradGuard no_grad_;
};

}  // namespace fsdp::detail
