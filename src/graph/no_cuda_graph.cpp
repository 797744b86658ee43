// Built without the CUDA toolkit.
#include "graph/device_graph.h"

namespace fsdp::detail {

std::unique_ptr<DeviceGraph> make_cuda_graph() { return nullptr; }

}  // namespace fsdp::detail
