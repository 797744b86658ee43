#include <cerrno>
#include <cstring>
#include <fstream>

#include "app/config/document.h"

namespace fsdp::config {

std::string read_config_file(const std::string& path, Problems& problems) {
  constexpr size_t kMostBytes = 1 << 20;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (!file.is_open() || file.bad() || (text.empty() && errno != 0)) {
    problems.add(path, "",
                 std::string("cannot be read: ") + std::strerror(errno) +
                     ". `fsdp config --example` prints a config file to start from");
    return "";
  }
  if (text.size() > kMostBytes) {
    problems.add(path, "", "found more than 1 MiB, expected a config file");
    return "";
  }
  return text;
}

}  // namespace fsdp::config
