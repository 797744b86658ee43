// For builds without the CUDA toolkit: no device has graphs.
#include "graph/device_graph.h"

namespace fsdp::detail {

std::unique_ptr<DeviceGraph> make_device_graph(c10::Device /*device*/) { return nullptr; }

}  // namespace fsdp::detail
