// What tests of the launcher share: a folder of their own, jobs of test ranks, and waiting for files.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "app/launch/job.h"

namespace fsdp::launch {

class LaunchTest : public ::testing::Test {
 protected:
  LaunchTest() {
    std::string name = ::testing::TempDir() + "launch-test-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~LaunchTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // rank_program.cpp says what `actions` may be. Waits are short.
  static Job job(int ranks, const std::vector<std::string>& actions) {
    Job made{.argv = {LAUNCH_RANK}, .ranks = ranks};
    made.argv.insert(made.argv.end(), actions.begin(), actions.end());
    made.shown.clear();
    using std::chrono::milliseconds;
    made.patience = {.alone = milliseconds(100), .stopped = milliseconds(30), .term = milliseconds(100)};
    return made;
  }

  static std::string text_of(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  // At most 20 s.
  static bool wait_until(const std::function<bool()>& done) {
    for (int i = 0; i < 4000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return done();
  }
  static pid_t pid_in(const std::string& path) {
    if (!wait_until([&] { return std::filesystem::exists(path); })) return -1;
    return static_cast<pid_t>(std::stoi(text_of(path)));
  }
  // A process that has ended but was not reaped yet does not run.
  static bool runs(pid_t pid) {
    const std::string stat = text_of("/proc/" + std::to_string(pid) + "/stat");
    const size_t name_end = stat.rfind(')');
    return name_end != std::string::npos && stat.at(name_end + 2) != 'Z';
  }

 private:
  std::string folder_;
};

}  // namespace fsdp::launch
