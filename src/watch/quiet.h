// A scope for operators of our own: not observed, not recorded by autograd.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "watch/observer.h"

namespace fsdp::detail {

// While one lives on this thread, the observer ignores its operators.
class Quiet {
 public:
  Quiet() = default;
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  c10::InferenceMode no_inference_{false};
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard unobserved_{kWatchedKey};
};

}  // namespace fsdp::detail
