// Built if there are no headers of gloo.
#include <c10/util/Exception.h>

#include "comm/gloo/gloo.h"

namespace fsdp::detail {

bool gloo_available() { return false; }

std::string gloo_unavailable_reason() {
  return "this build cannot connect CPU ranks of several hosts: it was configured without the headers of "
         "gloo. "
         "Install them (Debian and Ubuntu: libgloo-dev) and configure again, or give CommOptions::c10d a "
         "function that makes a c10d backend";
}

std::unique_ptr<CommBackend> make_gloo(const GroupInfo& /*info*/) {
  TORCH_CHECK(false, "fsdp: ", gloo_unavailable_reason());
}

}  // namespace fsdp::detail
