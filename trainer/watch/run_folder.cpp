#include "trainer/watch/run_folder.h"

#include <fsdp/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace fsdp::watch {

namespace {
namespace fs = std::filesystem;
}

bool RunFolder::has_run() const {
  std::error_code ignored;
  return fs::exists(config(), ignored) || fs::exists(metrics(), ignored) ||
         fs::exists(path + "/latest", ignored);
}

void RunFolder::make() const {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw IoError("create", path, error.value(), "the folder of the run; --run DIR names another");
  if (::access(path.c_str(), W_OK) != 0)
    throw IoError("write to", path, errno, "the folder of the run; --run DIR names another");
}

void RunFolder::write_config(const std::string& yaml) const {
  const std::string partial = config() + ".new";
  std::ofstream file(partial, std::ios::binary);
  file << yaml;
  file.close();
  if (!file) throw IoError("write", partial, errno);
  if (std::rename(partial.c_str(), config().c_str()) != 0) throw IoError("rename", partial, errno);
}

std::string default_run_folder(const std::string& config, const std::string& stage) {
  return "runs/" + config + "/" + stage;
}

}  // namespace fsdp::watch
