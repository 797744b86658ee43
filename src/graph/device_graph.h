// DeviceGraph: a recording of device work that can be launched again as a whole.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace fsdp::detail {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Between begin() and end(), work on the current stream, and on streams that wait for it, is only recorded.
  virtual void begin() = 0;
  virtual void end() = 0;
  virtual void replay() = 0;
};

// Null if the device has no graphs.
std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device);

// Makes the recordings of devices other than CUDA; empty, the default: they have none. One for the process,
// like the table of CUDA's functions.
std::function<std::unique_ptr<DeviceGraph>(c10::Device)>& other_device_graphs();

// LibTorch's CUDA graphs; null if they are not found.
std::unique_ptr<DeviceGraph> make_cuda_graph();

}  // namespace fsdp::detail
