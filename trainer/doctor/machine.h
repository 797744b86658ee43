// Checks of the machine that a rank is on: processors, memory, limits, clock, disk.
#pragma once

#include <string>

#include "trainer/doctor/finding.h"

namespace fsdp::doctor {

struct MachineOptions {
  int ranks = 1;             // of this machine
  int world_size = 1;        // of all machines
  bool uses_gpus = false;    // NCCL, which wants /dev/shm and pinned memory
  std::string folder = ".";  // where runs are to be kept
  std::string root = "";     // stands before /proc and /sys, for tests
};

Finding check_processors(const MachineOptions& options);
Finding check_memory(const MachineOptions& options);
// Memory without a name, which CPU ranks share, and /dev/shm, which NCCL uses.
Finding check_shared_memory(const MachineOptions& options);
// Open files and locked memory, as they are for this process.
Findings check_limits(const MachineOptions& options);
Finding check_clock(const MachineOptions& options);
// Room, speed and locks of the file system of `folder`.
Finding check_disk(const MachineOptions& options);

// "570.86.15"; empty: there is no NVIDIA driver, or it does not tell (some containers).
std::string driver_version(const std::string& root = "");

// All of the checks above.
Findings check_machine(const MachineOptions& options);

}  // namespace fsdp::doctor
