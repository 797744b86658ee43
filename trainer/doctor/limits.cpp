// Shared memory, limits and the clock.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>

#include "app/launch/fd.h"
#include "trainer/doctor/machine.h"
#include "trainer/doctor/text_files.h"
#include "trainer/watch/text.h"

namespace fsdp::doctor {

namespace {

// How CPU ranks share memory: a file without a name, which others open through /proc. Empty: it works.
std::string share_problem() {
  const launch::Fd file(::memfd_create("fsdp-doctor", MFD_CLOEXEC));
  constexpr size_t kBytes = 1 << 20;
  if (!file.valid() || ::ftruncate(file.get(), kBytes) != 0)
    return std::string("memfd_create fails: ") + std::strerror(errno);
  const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file.get());
  const launch::Fd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!again.valid()) return path + " cannot be opened: " + std::strerror(errno);
  void* mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0);
  if (mapped == MAP_FAILED) return std::string("it cannot be mapped: ") + std::strerror(errno);
  ::munmap(mapped, kBytes);
  return "";
}

std::string limit_text(rlim_t value, bool bytes) {
  if (value == RLIM_INFINITY) return "unlimited";
  return bytes ? watch::bytes_text(static_cast<double>(value)) : std::to_string(value);
}

Finding check_files(const MachineOptions& options) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  // Measured use of a rank is below 100; a backend over sockets has some per peer.
  const rlim_t needed = 256 + 8 * static_cast<rlim_t>(options.world_size);
  constexpr rlim_t kPlenty = 4096;
  Finding found{.subject = "limits: open files"};
  found.text = limit_text(limit.rlim_cur, false) + ", at most " + limit_text(limit.rlim_max, false);
  if (limit.rlim_cur >= needed) return found;
  found.level = Level::problem;
  found.text += "; " + std::to_string(options.world_size) + " ranks need about " + std::to_string(needed);
  found.advice =
      limit.rlim_max >= needed
          ? "Type `ulimit -n " + limit_text(std::min(limit.rlim_max, std::max(kPlenty, needed)), false) +
                "` before the command"
          : "Raise the hard limit: `* hard nofile 65536` in /etc/security/limits.conf, or `docker run "
            "--ulimit nofile=65536`";
  return found;
}

Finding check_locked(const MachineOptions& options) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool has_infiniband = ::access((options.root + "/dev/infiniband").c_str(), F_OK) == 0;
  constexpr rlim_t kLittle = rlim_t{64} << 20;
  Finding found{.subject = "limits: locked memory"};
  found.text = limit_text(limit.rlim_cur, true) + (has_infiniband ? ", with InfiniBand" : "");
  if (limit.rlim_cur == RLIM_INFINITY || !has_infiniband || limit.rlim_cur >= (kLittle << 10)) return found;
  found.level = limit.rlim_cur < kLittle ? Level::problem : Level::warning;
  found.advice =
      "InfiniBand registers the memory it sends from. Type `ulimit -l unlimited` before the command; for a "
      "container "
      "`docker run --ulimit memlock=-1`, for Slurm `PropagateResourceLimitsExcept=MEMLOCK`";
  return found;
}

}  // namespace

Finding check_shared_memory(const MachineOptions& options) {
  Finding found{.subject = "shared memory"};
  if (const std::string why = share_problem(); !why.empty()) {
    found.level = options.uses_gpus ? Level::warning : Level::problem;
    found.text = "processes cannot share memory: " + why;
    found.advice =
        "CPU ranks of one machine need memfd_create and /proc: mount /proc, and allow both in the "
        "container's seccomp profile";
    return found;
  }
  found.text = "works";
  struct statvfs info {};
  if (::statvfs((options.root + "/dev/shm").c_str(), &info) != 0) {
    found.text += "; there is no /dev/shm";
    if (!options.uses_gpus) return found;
    found.level = Level::problem;
    found.advice = "NCCL needs /dev/shm: mount a tmpfs there";
    return found;
  }
  const double size = static_cast<double>(info.f_blocks) * static_cast<double>(info.f_frsize);
  const double left = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  found.text += "; /dev/shm has " + watch::bytes_text(left) + " of " + watch::bytes_text(size) + " free";
  constexpr double kPerRank = 64 << 20;  // NCCL's buffers, for all its channels
  if (!options.uses_gpus || options.ranks < 2 || left >= kPerRank * options.ranks) return found;
  found.level = Level::problem;
  found.advice =
      "NCCL fails with \"unhandled system error\" when it is full. Start the container with --ipc=host or "
      "--shm-size=8g, or remove what lies in /dev/shm";
  return found;
}

Findings check_limits(const MachineOptions& options) { return {check_files(options), check_locked(options)}; }

std::string driver_version(const std::string& root) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Wed ..."; an open module says "Open Kernel
  // Module for x86_64  570.86.15".
  std::istringstream words(value_in(read_text(root + "/proc/driver/nvidia/version"), "NVRM version"));
  for (std::string word; words >> word;)
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos)
      return word;
  return "";
}

Finding check_clock(const MachineOptions& options) {
  Finding found{.subject = "clock"};
  const std::string source =
      read_text(options.root + "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  timex state{};
  const bool is_synchronised = ::adjtimex(&state) != TIME_ERROR;
  found.text = std::string(is_synchronised ? "synchronised" : "not synchronised by NTP") +
               (source.empty() ? "" : ", source " + source);
  if (source == "hpet" || source == "acpi_pm" || source == "jiffies") {
    found.level = Level::warning;
    found.advice =
        "Reading this clock takes about a microsecond, and ranks read it in every wait. See `dmesg | grep "
        "-i tsc` for why the kernel does not use tsc";
  }
  return found;
}

}  // namespace fsdp::doctor
