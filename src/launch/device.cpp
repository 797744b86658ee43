#include "launch/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <fsdp/error.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"

namespace fsdp::detail {

namespace {

// libfsdp does not link libtorch_cuda, so that one binary runs with and without a GPU. This loads it if there
// is a GPU.
void load_cuda() {
  if (c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return;
  const bool driver = ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0;
  if (!driver) return;
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    log_warn(
        std::string(
            "this host has an NVIDIA driver but libtorch_cuda cannot be loaded, so ranks use the CPU: ") +
        ::dlerror());
}

int visible_devices(c10::DeviceType type) {
  if (type == c10::kCUDA) load_cuda();
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

c10::Device nth(c10::DeviceType type, int local_rank, int visible) {
  return {type, static_cast<c10::DeviceIndex>(local_rank % visible)};
}

c10::Device parse(const std::string& text) {
  try {
    return c10::Device(text);
  } catch (const std::exception&) {
    throw RendezvousError("FSDP_DEVICE='" + text + "' is not a device; use cpu, cuda or cuda:N");
  }
}

c10::Device with_index(c10::Device asked, int local_rank) {
  if (asked.is_cpu()) return asked;
  const int visible = visible_devices(asked.type());
  const std::string kind = c10::DeviceTypeName(asked.type());
  if (visible == 0)
    throw RendezvousError("a " + kind +
                          " device was asked for but none is visible; check its driver, variables that hide "
                          "devices (CUDA_VISIBLE_DEVICES) and that LibTorch has " +
                          kind);
  if (!asked.has_index()) return nth(asked.type(), local_rank, visible);
  if (asked.index() >= visible)
    throw RendezvousError(asked.str() + " was asked for but only " + std::to_string(visible) + " " + kind +
                          " devices are visible");
  return asked;
}

}  // namespace

c10::Device choose_device(std::optional<c10::Device> asked, int local_rank) {
  if (asked) return with_index(*asked, local_rank);
  if (const auto text = env_string("FSDP_DEVICE")) return with_index(parse(*text), local_rank);
  const int visible = visible_devices(c10::kCUDA);
  return visible > 0 ? nth(c10::kCUDA, local_rank, visible) : c10::Device(c10::kCPU);
}

}  // namespace fsdp::detail
