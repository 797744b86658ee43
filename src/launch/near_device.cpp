#include "launch/near_device.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <string>

namespace fsdp::detail {

std::optional<NumaNode> node_near(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  // libfsdp does not link the CUDA runtime: LibTorch has loaded it.
  using PciAddress = int (*)(char* address, int size, int device);
  const auto pci_address = reinterpret_cast<PciAddress>(::dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  char address[32] = {};
  const int number = device.has_index() ? device.index() : 0;
  if (pci_address == nullptr || pci_address(address, sizeof address, number) != 0) return std::nullopt;
  std::string name(address);  // the runtime writes large letters, sysfs has small ones
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return numa_node_of(name);
}

}  // namespace fsdp::detail
