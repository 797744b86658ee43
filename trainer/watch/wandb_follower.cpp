#include <fcntl.h>
#include <features.h>
#include <fsdp/error.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "trainer/watch/run_folder.h"
#include "trainer/watch/wandb.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace fsdp::watch {

extern const char* const kWandbScript;  // wandb_follow.py

namespace {

using Clock = std::chrono::steady_clock;

// The attributes of a process that leads a session of its own and blocks no signal.
class OwnSession {
 public:
  OwnSession() {
    ::posix_spawnattr_init(&attributes_);
    sigset_t none;
    ::sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  }
  ~OwnSession() { ::posix_spawnattr_destroy(&attributes_); }
  OwnSession(const OwnSession&) = delete;
  OwnSession& operator=(const OwnSession&) = delete;

  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

// The files of the process: stdin from `input`, the rest to the log, no other one.
class Files {
 public:
  Files(int input, const std::string& log) {
    constexpr int kAppend = O_WRONLY | O_CREAT | O_APPEND;
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_adddup2(&actions_, input, 0);
    ::posix_spawn_file_actions_addopen(&actions_, 1, log.c_str(), kAppend, 0666);
    ::posix_spawn_file_actions_adddup2(&actions_, 1, 2);
#if __GLIBC_PREREQ(2, 34)
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, 3);
#endif
  }
  ~Files() { ::posix_spawn_file_actions_destroy(&actions_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

std::vector<std::string> command_of(const WandbOptions& options) {
  std::vector<std::string> words{options.python,  "-c",           kWandbScript, options.folder,
                                 options.project, options.entity, options.mode};
  words.insert(words.end(), options.tags.begin(), options.tags.end());
  return words;
}

std::string last_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) last = line;
  return last;
}

}  // namespace

WandbFollower::WandbFollower(const WandbOptions& options)
    : log_(RunFolder{options.folder}.logs() + "/wandb.log") {
  std::error_code ignored;
  std::filesystem::create_directories(RunFolder{options.folder}.logs(), ignored);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw IoError("open", "a pipe", errno);
  std::vector<std::string> words = command_of(options);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const Files files(ends[0], log_);
  const int error = ::posix_spawnp(&process_, options.python.c_str(), files.get(), OwnSession().get(),
                                   arguments.data(), environ);
  ::close(ends[0]);
  input_ = ends[1];
  if (error == 0) return;
  end_input();
  throw IoError("start", options.python, error, "it sends metrics to Weights & Biases");
}

WandbFollower::~WandbFollower() { end_input(); }

void WandbFollower::end_input() {
  if (input_ >= 0) ::close(std::exchange(input_, -1));
}

std::optional<std::string> WandbFollower::finish(std::chrono::milliseconds patience) {
  end_input();
  int status = 0;
  const Clock::time_point until = Clock::now() + patience;
  pid_t ended = 0;
  while ((ended = ::waitpid(process_, &status, WNOHANG)) == 0 && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (ended == 0)
    return "Weights & Biases still has metrics to send; process " + std::to_string(process_) +
           " goes on with it. " + log_ + " tells how far it is";
  if (ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return "Weights & Biases did not get all metrics: " + last_line_of(log_) + ". metrics.jsonl has them; " +
         log_ + " has the details";
}

}  // namespace fsdp::watch
