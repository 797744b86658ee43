#include "graph/device_graph.h"

namespace fsdp::detail {

std::function<std::unique_ptr<DeviceGraph>(c10::Device)>& other_device_graphs() {
  static std::function<std::unique_ptr<DeviceGraph>(c10::Device)> maker;
  return maker;
}

std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device) {
  if (device.is_cuda()) return make_cuda_graph();
  return other_device_graphs() ? other_device_graphs()(device) : nullptr;
}

}  // namespace fsdp::detail
