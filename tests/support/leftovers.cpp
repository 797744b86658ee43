#include "support/leftovers.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace fsdp::testing {

namespace {

namespace fs = std::filesystem;

// Other tests that run at the same time may have folders there: TempFolder.
void add_files(const char* folder, std::set<std::string>& found) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (!entry.path().filename().string().starts_with("fsdp-test-")) found.insert(entry.path().string());
}

// Memory files of ours that some process has open or mapped.
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

// Children of this process, the dead that nobody reaped included.
void add_child(const fs::path& process, std::set<std::string>& found) {
  std::ifstream stat(process / "stat");
  std::string text;
  std::getline(stat, text);
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return;
  char state = 0;
  int parent = 0;
  if (std::sscanf(text.c_str() + end + 1, " %c %d", &state, &parent) == 2 && parent == ::getpid())
    found.insert("child process " + text.substr(0, end + 1));
}

}  // namespace

Leftovers::Leftovers() : before_(take_stock()) {}

std::set<std::string> Leftovers::take_stock() {
  std::set<std::string> found;
  add_files("/dev/shm", found);
  add_files("/dev/mqueue", found);
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    if (process.path().filename().string().find_first_not_of("0123456789") != std::string::npos) continue;
    add_memory_of(process.path(), found);
    add_child(process.path(), found);
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
