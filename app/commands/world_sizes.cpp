#include "app/commands/world_sizes.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include "app/launch/environment.h"

namespace fsdp::app {

namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  list.reserve(strings.size() + 1);
  for (std::string& one : strings) list.push_back(one.data());
  list.push_back(nullptr);
  return list;
}

// Runs `words` with no output. True: exit code 0.
bool succeeds(std::vector<std::string> words, std::vector<std::string> environment) {
  ::signal(SIGCHLD, SIG_DFL);  // a parent may have had it ignored, and then there is no status
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, words[0].c_str(), &files, nullptr, pointers(words).data(),
                                   pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&files);
  int status = 0;
  while (failed == 0 && ::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return false;
  return failed == 0 && status == 0;
}

// As rank 0 of a restart, without the worker, which only adds the bytes per rank.
bool fits(const std::vector<std::string>& command, int local, int ranks) {
  launch::Environment variables = launch::current_environment();
  variables["RANK"] = variables["LOCAL_RANK"] = "0";
  variables["WORLD_SIZE"] = std::to_string(ranks);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(local);
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  variables["FSDP_WORKER"] = "/none";
  for (const char* name : {"NODE_RANK", "TORCHELASTIC_ERROR_FILE"}) variables.erase(name);
  std::vector<std::string> words = command;
  words.emplace_back("--dry-run");
  return succeeds(std::move(words), launch::to_assignments(variables));
}

}  // namespace

std::function<bool(int ranks)> world_sizes_that_fit(const std::vector<std::string>& command, int ranks,
                                                    int most) {
  if (command.size() < 2 || command[1] != "train") return {};
  const auto check = [command, ranks](int all) { return fits(command, ranks, all); };
  for (int nodes = most; nodes > 0; --nodes)
    if (check(nodes * ranks)) return check;
  return {};
}

}  // namespace fsdp::app
