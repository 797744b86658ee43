// A recording of device work that can be launched again as a whole.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

namespace fsdp::detail {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Between the two, work on the current stream, and on streams that wait for it, is recorded, not done.
  virtual void begin() = 0;
  virtual void end() = 0;
  virtual void replay() = 0;
};

// Null where the device has no graphs.
std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device);

}  // namespace fsdp::detail
