// Processors and memory.
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "trainer/doctor/machine.h"
#include "trainer/doctor/text_files.h"
#include "trainer/watch/text.h"

namespace fsdp::doctor {

namespace {

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

// Processors that a container may use at a time; 0: as many as there are.
double processor_quota(const std::string& root) {
  std::istringstream text(read_text(root + "/sys/fs/cgroup/cpu.max"));
  std::string quota;
  double period = 0;
  text >> quota >> period;
  return quota.empty() || quota == "max" || period <= 0 ? 0 : std::atof(quota.c_str()) / period;
}

bool has_word(const std::string& list, const std::string& word) {
  return (" " + list + " ").find(" " + word + " ") != std::string::npos;
}

std::string machine_type() {
  utsname name{};
  return ::uname(&name) == 0 ? name.machine : "";
}

std::string rounded(double value) {
  std::ostringstream text;
  text.precision(3);
  text << value;
  return text.str();
}

}  // namespace

Finding check_processors(const MachineOptions& options) {
  const std::string info = read_text(options.root + "/proc/cpuinfo");
  const std::string model = value_in(info, "model name"), flags = value_in(info, "flags");
  const int usable = usable_processors();
  const double quota = processor_quota(options.root);
  Finding found{.subject = "processors"};
  found.text = std::to_string(usable) + " usable" + (model.empty() ? "" : ", " + model);
  std::string sets;
  for (const char* set : {"avx2", "f16c", "avx512f", "avx512_bf16", "amx_bf16"})
    if (has_word(flags, set)) sets += std::string(sets.empty() ? "" : " ") + set;
  if (!sets.empty()) found.text += ", " + sets;
  if (machine_type() == "x86_64" && !flags.empty() && !has_word(flags, "avx2")) {
    found.level = Level::warning;
    found.text += ", without AVX2";
    found.advice =
        "Sums and AdamW on CPU ranks use slower instructions. A virtual machine may hide AVX2: set its "
        "processor type to `host`";
  }
  if (quota > 0 && quota < usable) {
    found.level = Level::warning;
    found.text += ", of which the container may use " + rounded(quota) + " at a time";
    found.advice =
        "Threads beyond that number wait: start the container with --cpus=" + std::to_string(usable) +
        ", or set OMP_NUM_THREADS=" +
        std::to_string(std::max(1, static_cast<int>(quota) / std::max(1, options.ranks)));
  } else if (!options.uses_gpus && options.ranks > usable) {
    found.level = Level::warning;
    found.text += ", for " + std::to_string(options.ranks) + " ranks";
    found.advice = "Ranks take turns on a processor. Start at most " + std::to_string(usable) + " here";
  }
  return found;
}

Finding check_memory(const MachineOptions& options) {
  const std::string info = read_text(options.root + "/proc/meminfo");
  constexpr double kKiB = 1024;
  const double total = std::atof(value_in(info, "MemTotal").c_str()) * kKiB;
  const double available = std::atof(value_in(info, "MemAvailable").c_str()) * kKiB;
  const std::string limit_text = read_text(options.root + "/sys/fs/cgroup/memory.max");
  const double limit = limit_text.empty() || limit_text == "max" ? 0 : std::atof(limit_text.c_str());
  Finding found{.subject = "memory"};
  found.text = watch::bytes_text(available) + " of " + watch::bytes_text(total) + " available";
  if (limit > 0 && limit < total) found.text += ", the container may use " + watch::bytes_text(limit);
  constexpr double kLittle = 0.1;
  if (total > 0 && available < kLittle * total) {
    found.level = Level::warning;
    found.advice = "Other processes hold most of the memory: see `ps aux --sort=-rss | head`";
  }
  return found;
}

}  // namespace fsdp::doctor
