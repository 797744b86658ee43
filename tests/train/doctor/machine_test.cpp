#include "trainer/doctor/machine.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/temp_folder.h"

namespace fsdp::doctor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A folder that stands for "/", with the files that a test writes.
class Machine : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return folder_.path(); }
  MachineOptions options() const { return {.ranks = 2, .world_size = 2, .folder = root(), .root = root()}; }

  fsdp::testing::TempFolder folder_;
};

TEST_F(Machine, ThisMachineIsDescribed) {
  const Findings findings = check_machine({});
  EXPECT_EQ(findings.size(), 7U);
  for (const Finding& one : findings) {
    EXPECT_NE(one.text, "") << one.subject;
    EXPECT_EQ(one.level == Level::ok, one.advice.empty()) << one.subject << ": " << one.text;
  }
}

TEST_F(Machine, AQuotaBelowTheProcessorsSlowsThreads) {
  write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  const Finding found = check_processors(options());
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_THAT(found.text, HasSubstr("the container may use 0.5 at a time"));
  EXPECT_THAT(found.advice, AllOf(HasSubstr("--cpus="), HasSubstr("OMP_NUM_THREADS=1")));
  write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(check_processors(options()).level, Level::ok);
}

TEST_F(Machine, AProcessorWithoutVectorsIsTold) {
#ifdef __x86_64__
  write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Old One\nflags\t\t: fpu sse sse2\n");
  const Finding found = check_processors(options());
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_THAT(found.text, AllOf(HasSubstr("Old One"), HasSubstr("without AVX2")));
  write("/proc/cpuinfo", "model name\t: New One\nflags\t\t: fpu avx avx2 f16c avx512f\n");
  EXPECT_THAT(check_processors(options()).text, HasSubstr("New One, avx2 f16c avx512f"));
#endif
}

TEST_F(Machine, MoreRanksThanProcessors) {
  MachineOptions many = options();
  many.ranks = 10000;
  EXPECT_EQ(check_processors(many).level, Level::warning);
  many.uses_gpus = true;
  EXPECT_EQ(check_processors(many).level, Level::ok);
}

TEST_F(Machine, FullMemory) {
  write("/proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:     52428 kB\n");
  const Finding found = check_memory(options());
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_THAT(found.text, HasSubstr("51.2 MiB of 1.00 GiB available"));
}

TEST_F(Machine, NcclNeedsSharedMemoryInDev) {
  MachineOptions gpus = options();
  gpus.uses_gpus = true;
  const Finding found = check_shared_memory(gpus);  // the root has no /dev/shm
  EXPECT_EQ(found.level, Level::problem);
  EXPECT_THAT(found.text, HasSubstr("there is no /dev/shm"));
  EXPECT_EQ(check_shared_memory(options()).level, Level::ok);
  std::filesystem::create_directories(root() + "/dev/shm");
  gpus.ranks = 1 << 20;  // need more than any disk has
  EXPECT_THAT(check_shared_memory(gpus).advice, AllOf(HasSubstr("--ipc=host"), HasSubstr("--shm-size")));
}

TEST_F(Machine, TooFewFilesForTheRanks) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 100;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const Finding found = check_limits(options())[0];
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(found.level, Level::problem);
  EXPECT_THAT(found.text, HasSubstr("100, at most "));
  EXPECT_THAT(found.advice, HasSubstr("ulimit -n "));
}

TEST_F(Machine, LockedMemoryMattersWithInfiniBand) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit little = before;
  little.rlim_cur = 65536;
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &little), 0);
  const Finding without = check_limits(options())[1];
  write("/dev/infiniband/uverbs0", "");
  const Finding with = check_limits(options())[1];
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_EQ(without.level, Level::ok);
  EXPECT_EQ(with.level, Level::problem);
  EXPECT_THAT(with.advice, HasSubstr("ulimit -l unlimited"));
}

TEST_F(Machine, TheDriverOfGpus) {
  EXPECT_EQ(driver_version(root()), "");
  const std::string file = "/proc/driver/nvidia/version",
                    gcc = "\nGCC version:  gcc version 12.2.0 (Debian)\n";
  write(file,
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 03:09:01 UTC 2025" + gcc);
  EXPECT_EQ(driver_version(root()), "570.86.15");
  write(file, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)" + gcc);
  EXPECT_EQ(driver_version(root()), "580.65.06");
  write(file, "no version");
  EXPECT_EQ(driver_version(root()), "");
}

TEST_F(Machine, ASlowClock) {
  const std::string file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
  write(file, "hpet\n");
  EXPECT_EQ(check_clock(options()).level, Level::warning);
  write(file, "tsc\n");
  EXPECT_EQ(check_clock(options()).level, Level::ok);
}

TEST_F(Machine, TheDiskOfAFolderThatIsNotThereYet) {
  MachineOptions later = options();
  later.folder = root() + "/runs/new/stage1";
  const Finding found = check_disk(later);
  EXPECT_THAT(found.text, AllOf(HasSubstr(root()), HasSubstr("free, writes ")));
  EXPECT_TRUE(std::filesystem::is_empty(root())) << "a file was left behind";
  later.folder = "/proc/self";
  EXPECT_EQ(check_disk(later).level, Level::problem);
  EXPECT_THAT(check_disk(later).advice, HasSubstr("--run"));
}

}  // namespace
}  // namespace fsdp::doctor
