// A launcher that a test started, signals and waits for.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

namespace fsdp::launch {

// launch_supervisor (supervisor_program.cpp) with stdout and stderr in the file `output`.
class LauncherProcess {
 public:
  LauncherProcess(int ranks, const std::vector<std::string>& actions, const std::string& output) {
    std::vector<std::string> words = {LAUNCH_SUPERVISOR, std::to_string(ranks), LAUNCH_RANK};
    words.insert(words.end(), actions.begin(), actions.end());
    pid_ = ::fork();
    if (pid_ == 0) become(words, output);
  }
  ~LauncherProcess() {
    if (pid_ <= 0) return;
    signal(SIGKILL);
    wait();
  }
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  // Its exit code; 128 + n: signal n ended it.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  [[noreturn]] static void become(const std::vector<std::string>& words, const std::string& output) {
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }

  pid_t pid_ = -1;
};

}  // namespace fsdp::launch
