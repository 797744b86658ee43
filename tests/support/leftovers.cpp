#include "support/leftovers.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

namespace fsdp::testing {

namespace {

namespace fs = std::filesystem;

// Names of ours. Other tests that run at the same time may have folders there: TempFolder.
void add_files(const char* folder, std::set<std::string>& found) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find("fsdp") != std::string::npos && !name.starts_with("fsdp-test-"))
      found.insert(entry.path().string());
  }
}

// Memory files of ours that a process has open or mapped.
void add_memory_of(const fs::path& process, std::set<std::string>& found) {
  std::error_code ignored;
  for (const auto& fd : fs::directory_iterator(process / "fd", ignored)) {
    const auto target = fs::read_symlink(fd.path(), ignored).string();
    if (target.find("memfd:fsdp") != std::string::npos) found.insert(fd.path().string() + " -> " + target);
  }
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:fsdp") != std::string::npos) found.insert(process.string() + " maps " + line);
}

struct Process {
  pid_t parent;
  std::string name;
};

// All processes of the machine.
std::map<pid_t, Process> all_processes() {
  std::map<pid_t, Process> all;
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string text;
    std::getline(std::ifstream(process.path() / "stat"), text);
    const size_t end = text.rfind(')');
    char state = 0;
    int parent = 0;
    if (end != std::string::npos && std::sscanf(text.c_str() + end + 1, " %c %d", &state, &parent) == 2)
      all[std::stoi(pid)] = {.parent = parent, .name = text.substr(0, end + 1)};
  }
  return all;
}

// This process, then its descendants, the dead that nobody reaped included.
std::vector<pid_t> own_processes(const std::map<pid_t, Process>& all) {
  std::vector<pid_t> own{::getpid()};
  for (size_t i = 0; i < own.size(); ++i)
    for (const auto& [pid, process] : all)
      if (process.parent == own[i]) own.push_back(pid);
  return own;
}

}  // namespace

Leftovers::Leftovers() : before_(take_stock()) { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
Leftovers::~Leftovers() { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }

std::set<std::string> Leftovers::take_stock() {
  std::set<std::string> found;
  add_files("/dev/shm", found);
  add_files("/dev/mqueue", found);
  const auto all = all_processes();
  for (const pid_t pid : own_processes(all)) {
    add_memory_of("/proc/" + std::to_string(pid), found);
    if (pid != ::getpid()) found.insert("child process " + all.at(pid).name);
  }
  return found;
}

std::string Leftovers::found_since() const {
  std::string text;
  for (const auto& item : take_stock())
    if (!before_.contains(item)) text += item + "\n";
  return text;
}

}  // namespace fsdp::testing
