#include "app/launch/own_job.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "app/launch/environment.h"

namespace fsdp::launch {

namespace {

constexpr const char* kAgentRestarts = "TORCHELASTIC_RESTART_COUNT";
constexpr const char* kSlurmRestarts = "SLURM_RESTART_COUNT";

std::string text_of(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

int count_of(const Environment& environment, const char* name) {
  const std::string text = text_of(environment, name);
  int count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Process {
  int parent = 0;     // 0: it has none, or is gone
  std::string start;  // in clock ticks since the machine booted
};

Process read_process(int pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(stat.substr(name_end + 1));
  constexpr int kParent = 1, kStart = 19;  // fields after the name
  Process found;
  std::string field;
  for (int i = 0; i <= kStart && rest >> field; ++i) {
    if (i == kParent) found.parent = std::atoi(field.c_str());
    if (i == kStart) found.start = field;
  }
  return found;
}

bool has_variable(int pid, const std::string& name) {
  const std::string all = '\0' + read_file("/proc/" + std::to_string(pid) + "/environ");
  return all.find('\0' + name + '=') != std::string::npos;
}

std::string first_line(const std::string& path) {
  const std::string text = read_file(path);
  return text.substr(0, text.find('\n'));
}

// Host, boot, process and its start: no other process has had these.
std::string find_agent() {
  int pid = ::getppid();
  while (pid > 1 && has_variable(pid, kAgentRestarts)) pid = read_process(pid).parent;
  const std::string start = pid > 0 ? read_process(pid).start : "";
  if (start.empty()) return "";
  return host_name() + "/" + first_line("/proc/sys/kernel/random/boot_id") + "/" + std::to_string(pid) + "/" +
         start;
}

}  // namespace

bool JobIdentity::restarts(const JobIdentity& earlier) const {
  const bool by_slurm = slurm_restarts > 0 && !slurm_job.empty() && slurm_job == earlier.slurm_job;
  const bool by_agent = agent_restarts > 0 && !agent.empty() && agent == earlier.agent;
  return by_slurm || by_agent;
}

JobIdentity find_job(const Environment& environment) {
  JobIdentity job;
  if (const std::string id = text_of(environment, "SLURM_JOB_ID"); !id.empty()) {
    job.slurm_job = text_of(environment, "SLURM_CLUSTER_NAME") + "/" + id;
    job.slurm_restarts = count_of(environment, kSlurmRestarts);
  }
  if (!text_of(environment, kAgentRestarts).empty()) {
    job.agent = find_agent();
    job.agent_restarts = count_of(environment, kAgentRestarts);
  }
  return job;
}

std::string describe(const JobIdentity& job) {
  if (job.agent_restarts > 0) return "restart " + std::to_string(job.agent_restarts) + " by its launcher";
  return "restart " + std::to_string(job.slurm_restarts) + " of Slurm job " +
         job.slurm_job.substr(job.slurm_job.find('/') + 1);
}

}  // namespace fsdp::launch
