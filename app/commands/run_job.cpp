#include "app/commands/run_job.h"

#include <fsdp/error.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trainer/watch/run_folder.h"

namespace fsdp::app {

launch::JobIdentity read_run_job(const std::string& folder) {
  std::ifstream file(watch::RunFolder{folder}.job());
  const auto json = nlohmann::json::parse(file, nullptr, false);
  const auto text = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>()
                                                                           : "";
  };
  return {.slurm_job = text("slurm_job"), .agent = text("agent")};
}

void write_run_job(const std::string& folder, const launch::JobIdentity& job) {
  const std::string path = watch::RunFolder{folder}.job(), partial = path + ".new";
  if (!job.exists()) {
    std::remove(path.c_str());
    return;
  }
  std::ofstream file(partial);
  file << nlohmann::json{{"slurm_job", job.slurm_job}, {"agent", job.agent}}.dump(2) << "\n";
  file.close();
  if (!file) throw IoError("write", partial, errno);
  if (std::rename(partial.c_str(), path.c_str()) != 0) throw IoError("rename", partial, errno);
}

}  // namespace fsdp::app
