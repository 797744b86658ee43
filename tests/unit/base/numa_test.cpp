#include "base/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/worker_pool.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

using detail::MemoryFrom;
using detail::numa_node_of;

constexpr const char* kDevice = "0000:3b:00.0";

std::vector<int> allowed_processors() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  ::sched_getaffinity(0, sizeof mask, &mask);
  std::vector<int> all;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &mask)) all.push_back(i);
  return all;
}

// A machine as sysfs shows it: the processors of each node, and the node of the device.
struct Machine {
  Machine(const std::vector<std::string>& nodes, const std::string& of_device) {
    for (size_t i = 0; i < nodes.size(); ++i)
      write("devices/system/node/node" + std::to_string(i) + "/cpulist", nodes[i]);
    write("bus/pci/devices/" + std::string(kDevice) + "/numa_node", of_device);
  }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(folder / "sys") / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  auto node() const { return numa_node_of(kDevice, folder / "sys"); }

  TempFolder folder;
};

TEST(Numa, ADeviceHasTheProcessorsOfItsNode) {
  const std::vector<int> mine = allowed_processors();
  const std::string list = "5000-5003," + std::to_string(mine.front()) + "-" + std::to_string(mine.back());
  const Machine machine({"4000-4003", list}, "1");
  const auto node = machine.node();
  ASSERT_TRUE(node.has_value());
  EXPECT_EQ(node->number, 1);
  EXPECT_EQ(node->processors, mine);
}

TEST(Numa, WhereItMakesNoDifferenceThereIsNone) {
  const std::string mine = std::to_string(allowed_processors().front());
  EXPECT_FALSE(Machine({mine}, "0").node().has_value()) << "one node";
  EXPECT_FALSE(Machine({mine, "1"}, "-1").node().has_value()) << "not known";
  EXPECT_FALSE(Machine({mine, "4000-4003"}, "1").node().has_value()) << "processors it may not use";
  EXPECT_FALSE(Machine({mine, mine}, "7").node().has_value()) << "no such node";
  EXPECT_FALSE(Machine({mine, mine}, "what?").node().has_value());
  EXPECT_FALSE(numa_node_of("0000:00:00.9", "/nowhere").has_value());
}

TEST(Numa, MemoryComesFromTheNodeForAWhile) {
  const auto policy = [] {
    int mode = -1;
    unsigned long nodes[16] = {};
    ::syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof nodes, nullptr, 0);
    return std::pair(mode, nodes[0]);
  };
  const auto before = policy();
  const unsigned long first = 1;
  const bool possible = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, &first, 64) == 0;
  ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
  if (!possible) GTEST_SKIP() << "this system has no memory policies, or forbids them";
  {
    const MemoryFrom near(detail::NumaNode{.number = 0, .processors = {0}});
    EXPECT_EQ(policy(), std::pair(int{MPOL_PREFERRED}, 1UL));
    const MemoryFrom anywhere(std::nullopt);
    EXPECT_EQ(policy(), std::pair(int{MPOL_PREFERRED}, 1UL));
  }
  EXPECT_EQ(policy(), before);
}

TEST(Numa, WorkersStayOnTheirProcessors) {
  const int last = allowed_processors().back(), first = allowed_processors().front();
  detail::WorkerPool pool;
  const auto caller = std::this_thread::get_id();
  const auto everyone_on = [&](int processor) {
    std::atomic<int> workers{0}, elsewhere{0};
    pool.run(200, 2, [&](size_t) {
      if (std::this_thread::get_id() != caller) {
        if (::sched_getcpu() != processor) ++elsewhere;
        ++workers;
      }
      while (workers == 0) std::this_thread::yield();
    });
    return elsewhere == 0;
  };
  pool.stay_on({last, last});
  EXPECT_TRUE(everyone_on(last));
  pool.stay_on({first, first});
  EXPECT_TRUE(everyone_on(first));
}

}  // namespace
}  // namespace fsdp::testing
