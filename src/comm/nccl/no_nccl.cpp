// Built if there is no nccl.h.
#include <c10/util/Exception.h>

#include "comm/nccl/nccl.h"

namespace fsdp::detail {

bool nccl_available() { return false; }

std::string nccl_unavailable_reason() {
  return "this build has no NCCL: it was configured without the CUDA toolkit or nccl.h. Install both and "
         "configure with -DFSDP_CUDA=ON.";
}

std::unique_ptr<CommBackend> make_nccl(const GroupInfo& /*info*/) {
  TORCH_CHECK(false, "fsdp: ", nccl_unavailable_reason());
}

}  // namespace fsdp::detail
