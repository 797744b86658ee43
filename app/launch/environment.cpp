#include "app/launch/environment.h"

#include <sched.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fsdp::launch {

namespace {

// The numbers of a container's GPUs may have gaps: they are those of its host.
int device_files(const std::string& folder) {
  int count = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string(), prefix = "nvidia";
    const std::string number = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
    if (!number.empty() && number.find_first_not_of("0123456789") == std::string::npos) ++count;
  }
  return count;
}

// The devices that CUDA_VISIBLE_DEVICES leaves: those before the first that does not exist, as in CUDA.
int visible(const std::string& list, int devices) {
  int count = 0;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',') && count < devices; ++count) {
    int index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_number = error == std::errc() && end == part.data() + part.size();
    if (is_number ? index < 0 || index >= devices : !part.starts_with("GPU-") && !part.starts_with("MIG-"))
      break;
  }
  return count;
}

}  // namespace

Environment current_environment() {
  Environment found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    if (const char* equals = std::strchr(*entry, '='))
      found.emplace(std::string(static_cast<const char*>(*entry), equals), equals + 1);
  return found;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this-machine";
}

std::string random_run_id() {
  std::array<unsigned char, 16> bytes{};
  [[maybe_unused]] const auto got = ::getrandom(bytes.data(), bytes.size(), 0);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

int usable_processors(const std::string& group) {
  constexpr int kMostProcessors = 1 << 14;
  cpu_set_t* set = CPU_ALLOC(kMostProcessors);
  const size_t size = CPU_ALLOC_SIZE(kMostProcessors);
  const int count = ::sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 1;
  CPU_FREE(set);
  std::ifstream file(group +
                     "/cpu.max");  // "1600000 100000" in a container that may use 16, else "max 100000"
  double quota = 0, period = 0;
  const bool limited = file >> quota >> period && quota > 0 && period > 0;
  return std::max(limited ? std::min(count, static_cast<int>(quota / period)) : count, 1);
}

int usable_gpus(const Environment& environment, const std::string& devices) {
  const int found = device_files(devices);
  const auto list = environment.find("CUDA_VISIBLE_DEVICES");
  return list == environment.end() ? found : visible(list->second, found);
}

Environment rank_environment(const Job& job, int local_rank, const Environment& own, int processors,
                             int master_port, const RankFiles& files) {
  Environment all = own;
  for (const auto& [name, value] : job.environment) all[name] = value;
  all.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, processors / job.ranks)));
  all.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  all.erase("TORCHELASTIC_USE_AGENT_STORE");
  const std::string rank = std::to_string(job.first_rank() + local_rank);
  const std::string world = std::to_string(job.world_size());
  const Environment ours = {{"RANK", rank},
                            {"ROLE_RANK", rank},
                            {"LOCAL_RANK", std::to_string(local_rank)},
                            {"GROUP_RANK", std::to_string(job.node_rank)},
                            {"NODE_RANK", std::to_string(job.node_rank)},
                            {"WORLD_SIZE", world},
                            {"ROLE_WORLD_SIZE", world},
                            {"LOCAL_WORLD_SIZE", std::to_string(job.ranks)},
                            {"GROUP_WORLD_SIZE", std::to_string(job.nodes)},
                            {"ROLE_NAME", "default"},
                            {"MASTER_ADDR", job.master_addr},
                            {"MASTER_PORT", std::to_string(master_port)},
                            {"TORCHELASTIC_RESTART_COUNT", std::to_string(job.restart_count)},
                            {"TORCHELASTIC_MAX_RESTARTS", std::to_string(job.max_restarts)},
                            {"TORCHELASTIC_RUN_ID", job.run_id},
                            {"TORCHELASTIC_ERROR_FILE", files.error},
                            {"FSDP_STEP_FILE", files.step}};
  for (const auto& [name, value] : ours) all[name] = value;
  return all;
}

std::vector<std::string> to_assignments(const Environment& environment) {
  std::vector<std::string> assignments;
  assignments.reserve(environment.size());
  for (const auto& [name, value] : environment) assignments.push_back(name + "=" + value);
  return assignments;
}

}  // namespace fsdp::launch
