#include "app/commands/worker.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "app/launch/environment.h"
#include "app/launch/spawn.h"

namespace fsdp::app {

namespace {

namespace fs = std::filesystem;
constexpr const char* kWorker = "fsdp-worker";

// Variables that would make a process a rank.
constexpr const char* kRankVariables[] = {
    "RANK",        "LOCAL_RANK",  "WORLD_SIZE",    "LOCAL_WORLD_SIZE",     "NODE_RANK",    "GROUP_RANK",
    "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"};

// The user's choice; empty: none.
std::string named_worker() {
  const char* named = std::getenv("FSDP_WORKER");
  return named == nullptr ? "" : named;
}

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw IoError("wait for", kWorker, errno);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

SettingsFile::SettingsFile(const config::Settings& settings)
    : fd_(::memfd_create("fsdp-settings", MFD_CLOEXEC)) {
  const std::string text = settings.to_json().dump();
  if (!fd_.valid()) throw IoError("create", "a file in memory", errno);
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(fd_.get(), text.data() + at, text.size() - at);
    if (written < 0 && errno != EINTR) throw IoError("write to", "a file in memory", errno);
    if (written > 0) at += static_cast<size_t>(written);
  }
}

std::string SettingsFile::path() const { return "/dev/fd/" + std::to_string(fd_.get()); }

std::optional<std::string> find_worker() {
  if (const std::string named = named_worker(); !named.empty())
    return is_program(named) ? std::optional(named) : std::nullopt;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& path : {folder / kWorker, folder / "../libexec/fsdp" / kWorker})
    if (is_program(path)) return path.lexically_normal().string();
  return std::nullopt;
}

std::string missing_worker() {
  if (const std::string named = named_worker(); !named.empty())
    return "FSDP_WORKER: found " + named + ", expected the path of fsdp-worker, the program that trains";
  return "found no fsdp-worker, the program that trains, beside this one or in ../libexec/fsdp. Build it "
         "(`make build TARGET=fsdp_worker`), or set FSDP_WORKER to its path";
}

int run_plan(const std::string& worker, const SettingsFile& settings) {
  launch::Environment variables = launch::current_environment();
  for (const char* name : kRankVariables) variables.erase(name);
  const std::vector<std::string> environment = launch::to_assignments(variables);
  const std::vector<std::string> argv{worker, "plan", settings.path()};
  const std::vector<int> inherited{settings.fd()};
  sigset_t mask{};
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return wait_for(launch::start_process({.program = launch::find_program(worker, ""),
                                         .argv = argv,
                                         .environment = environment,
                                         .inherited_fds = inherited,
                                         .signal_mask = mask}));
}

void become(const std::vector<std::string>& argv, const SettingsFile& settings) {
  ::fcntl(settings.fd(), F_SETFD, 0);
  become(argv);
}

void become(const std::vector<std::string>& argv) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words[0], words.data());
  throw IoError("run", argv[0], errno);
}

}  // namespace fsdp::app
