#include "trainer/watch/wandb.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace fsdp::watch {

namespace {

// Prints one word: what is missing. A folder named wandb, as offline runs leave it, is no package.
constexpr const char* kProbe = R"(
import importlib.util, sys
sys.path = [folder for folder in sys.path if folder]
if sys.version_info < (3, 9): sys.exit("old %d.%d" % sys.version_info[:2])
found = importlib.util.find_spec("wandb")
if found is None or found.origin is None: sys.exit("package")
if "online" in sys.argv:
    import wandb
    try:
        known = wandb.login(prompt=False, verify=False)
    except TypeError:  # of older versions
        known = wandb.api.api_key
    if not known: sys.exit("login")
)";

struct Ended {
  int error = 0;  // errno if the program could not be started
  int status = 0;
  std::string output;
};

Ended run_probe(const std::string& python, bool online) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {errno, 0, ""};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  std::array<std::string, 4> words{python, "-c", kProbe, online ? "online" : "offline"};
  std::array<char*, 5> arguments{words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  pid_t child = 0;
  Ended ended;
  ended.error = ::posix_spawnp(&child, python.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::array<char, 512> block{};
  for (ssize_t n = 0; ended.error == 0; ended.output.append(block.data(), static_cast<size_t>(n))) {
    n = ::read(ends[0], block.data(), block.size());
    if (n < 0 && errno == EINTR)
      n = 0;
    else if (n <= 0)
      break;
  }
  ::close(ends[0]);
  while (ended.error == 0 && ::waitpid(child, &ended.status, 0) < 0 && errno == EINTR) {
  }
  return ended;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

}  // namespace

std::optional<std::string> wandb_problem(const std::string& python, bool online) {
  static const std::string kOff = ", or turn it off: --set wandb.use_wandb=false";
  const Ended ended = run_probe(python, online);
  if (ended.error != 0)
    return "Weights & Biases needs Python, but `" + python +
           "` cannot be started: " + std::strerror(ended.error) +
           ". Type `apt-get install python3 python3-pip`" + kOff;
  if (WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0) return {};
  const std::string word = last_line(ended.output);
  if (word.rfind("old ", 0) == 0)
    return "Weights & Biases needs Python 3.9 or newer, but `" + python + "` is Python " + word.substr(4) +
           ". Install a newer one" + kOff;
  if (word == "package")
    return "the Python package wandb is missing in `" + python + "`. Type `" + python +
           " -m pip install wandb`" + kOff;
  if (word == "login")
    return "Weights & Biases has no login for this user. Type `" + python +
           " -m wandb login`, or train without a network: --set wandb.mode=offline";
  return "Weights & Biases does not work in `" + python + "`: " + word + ". Type `" + python +
         " -m pip install --upgrade wandb`" + kOff;
}

}  // namespace fsdp::watch
