// Checks of LibTorch and of a rank's GPU.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fsdp/version.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "trainer/doctor/machine.h"
#include "trainer/doctor_ranks.h"
#include "trainer/watch/text.h"

namespace fsdp::train {

namespace {

using doctor::Finding;
using doctor::Findings;
using doctor::Level;

// The file of a GPU; empty: there is none. The numbers of a container's GPUs are those of its host.
std::string gpu_file() {
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = file.path().filename();
    if (name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == name.npos)
      return file.path();
  }
  return "";
}

bool has_gpus() { return !gpu_file().empty(); }

std::string cuda_version() {
  const long number = at::detail::getCUDAHooks().versionCUDART();
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// "2.26.2"; empty: it cannot be loaded.
std::string nccl_version() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) library = ::dlopen("libnccl.so.2", RTLD_NOW);
  auto* get =
      library == nullptr ? nullptr : reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  int number = 0;
  if (get == nullptr || get(&number) != 0) return "";
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

struct DeviceMemory {
  size_t available = 0, total = 0;
};

// Of the current device; zeros: not known.
DeviceMemory device_memory() {
  DeviceMemory memory;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* get = library == nullptr
                  ? nullptr
                  : reinterpret_cast<int (*)(size_t*, size_t*)>(::dlsym(library, "cuMemGetInfo_v2"));
  if (get == nullptr || get(&memory.available, &memory.total) != 0) return {};
  return memory;
}

Finding check_gpu(const World& world) {
  Finding found{.subject = "GPU"};
  const DeviceMemory memory = device_memory();
  const std::string driver = doctor::driver_version();
  found.text =
      world.device().str() + (driver.empty() ? "" : ", driver " + driver) + ", CUDA " + cuda_version();
  if (memory.total == 0) return found;
  found.text += ", " + watch::bytes_text(static_cast<double>(memory.available)) + " of " +
                watch::bytes_text(static_cast<double>(memory.total)) + " free";
  constexpr double kOwn = 0.9;  // the rest is what this process has for its context
  if (static_cast<double>(memory.available) > kOwn * static_cast<double>(memory.total)) return found;
  found.level = Level::warning;
  found.advice = "Another process uses this GPU: see `nvidia-smi`. CUDA_VISIBLE_DEVICES chooses others";
  return found;
}

Finding check_nccl() {
  Finding found{.subject = "NCCL", .text = nccl_version()};
  if (!found.text.empty()) return found;
  found.level = Level::problem;
  found.text = "libnccl.so.2 cannot be loaded";
  found.advice = "GPU ranks talk through NCCL: install libnccl2, or put its folder into LD_LIBRARY_PATH";
  return found;
}

// A machine has GPUs, and this rank computes on the CPU.
Finding unused_gpus() {
  Finding found{.level = Level::warning, .subject = "GPU", .text = "not used"};
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const char* device = std::getenv("FSDP_DEVICE");
  if (device != nullptr && std::string(device).starts_with("cpu")) {
    found.level = Level::ok;
    found.text += ": FSDP_DEVICE=" + std::string(device);
  } else if (visible != nullptr && (*visible == '\0' || *visible == '-')) {
    found.text += std::string(": CUDA_VISIBLE_DEVICES=") + visible;
    found.advice = "Unset CUDA_VISIBLE_DEVICES, or name GPUs in it";
  } else if (const std::string gpu = gpu_file(); ::access(gpu.c_str(), R_OK | W_OK) != 0) {
    found.text += ": " + gpu + " may not be opened";
    found.advice = "Add the user to the group of /dev/nvidia*, usually `video`";
  } else {
    const std::string driver = doctor::driver_version();
    found.text += ": LibTorch finds no CUDA" + (driver.empty() ? "" : "; the driver is " + driver);
    found.advice =
        "Either this LibTorch is a CPU build (set FSDP_TORCH_ROOT to one for CUDA and build again), or the "
        "driver is older than its CUDA: compare with `nvidia-smi`";
  }
  return found;
}

}  // namespace

Findings check_torch(const World& world) {
  Findings findings = {
      {.subject = "LibTorch",
       .text = std::string(TORCH_VERSION) + ", fsdp.cpp " + version() + ", device " + world.device().str()}};
  if (world.device().is_cuda()) {
    findings.push_back(check_gpu(world));
    findings.push_back(check_nccl());
  } else if (has_gpus()) {
    findings.push_back(unused_gpus());
  }
  return findings;
}

}  // namespace fsdp::train
