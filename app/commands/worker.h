// The program that trains, fsdp-worker, and the settings that it is given.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/config/settings.h"
#include "app/launch/fd.h"

namespace fsdp::app {

// Settings in a file without a name, which is gone with the last process that has it open.
class SettingsFile {
 public:
  // Throws IoError.
  explicit SettingsFile(const config::Settings& settings);

  int fd() const { return fd_.get(); }
  // For this process and those that inherit fd().
  std::string path() const;

 private:
  launch::Fd fd_;
};

// FSDP_WORKER, else fsdp-worker beside this program or in ../libexec/fsdp. Unset: there is none.
std::optional<std::string> find_worker();
// The message if find_worker() finds none.
std::string missing_worker();

// Prints units and bytes per rank: runs the worker as one process that is no rank. Returns its exit code.
// Throws launch::LaunchError.
int run_plan(const std::string& worker, const SettingsFile& settings);

// Becomes the worker. Throws IoError if that fails.
[[noreturn]] void become(const std::vector<std::string>& argv, const SettingsFile& settings);
[[noreturn]] void become(const std::vector<std::string>& argv);

}  // namespace fsdp::app
