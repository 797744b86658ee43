// LibTorch exports ProcessGroupGloo but not gloo's headers; any gloo's will do, since only pointers to its
// types are held.
#include "support/gloo.h"

#if __has_include(<gloo/algorithm.h>)

#define USE_C10D_GLOO  // the header is empty without it
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace fsdp::testing {

bool gloo_available() { return true; }

c10::intrusive_ptr<::c10d::Backend> make_gloo(const c10::intrusive_ptr<::c10d::Store>& store, int rank,
                                              int size) {
  auto options = ::c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(::c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<::c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace fsdp::testing

#else

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace fsdp::testing {

bool gloo_available() { return false; }

c10::intrusive_ptr<::c10d::Backend> make_gloo(const c10::intrusive_ptr<::c10d::Store>&, int, int) {
  TORCH_CHECK(false, "built without gloo's headers");
}

}  // namespace fsdp::testing

#endif
