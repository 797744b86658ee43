// fsdp-worker: the part of the fsdp command that needs LibTorch. The front starts it; people do not.
//
//   fsdp-worker train SETTINGS RUN fresh|resume   one rank of `fsdp train`; RUN "" keeps nothing
//   fsdp-worker plan SETTINGS [gpu]               prints units and bytes per rank, for --dry-run
//   fsdp-worker doctor REQUEST                    one rank of `fsdp doctor`; JSON, see doctor/request.h
//   fsdp-worker generate SETTINGS RUN REQUEST     REQUEST: JSON, see generate_request.h
//
// SETTINGS: a file of resolved settings.
#include <fsdp/fsdp.h>
#include <fsdp/log.h>
#include <fsdp/train.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "app/exit_codes.h"
#include "trainer/doctor_ranks.h"
#include "trainer/failure.h"
#include "trainer/generate.h"
#include "trainer/plan_run.h"
#include "trainer/run.h"
#include "trainer/watch/progress.h"
#include "trainer/watch/terminal.h"

namespace {

using namespace fsdp;

config::Settings read_settings(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw IoError("read", path, errno, "the front of the command writes it");
  return config::Settings::from_json(config::Json::parse(text));
}

using Words = std::vector<std::string>;

// Leaves out that the rank was found in RANK and WORLD_SIZE, which this command has set itself.
World init_without_info(const config::Settings& settings) {
  const LogSink before = set_log_sink([](LogLevel level, std::string_view line) {
    if (level != LogLevel::info) std::fprintf(stderr, "%s\n", format_log_line(level, line).c_str());
  });
  const World world = [&] {
    // The others may be on machines where nobody has started them yet: say so, and wait as long as in a run.
    const char* rank = std::getenv("RANK");
    std::optional<watch::Progress> progress;
    std::optional<watch::Progress::Wait> wait;
    if (rank != nullptr && std::string_view(rank) == "0" && settings.ranks() > 1) {
      progress.emplace(
          watch::ProgressOptions{.fd = STDERR_FILENO, .terminal = watch::find_terminal(STDERR_FILENO)});
      wait.emplace(progress->waiting("all " + std::to_string(settings.ranks()) + " ranks to come"));
    }
    return init({.timeout = std::chrono::seconds(settings.integer("distributed.timeout"))});
  }();
  set_log_sink(before);
  return world;
}

// Before the first step a rank has nothing to save: SIGTERM and SIGUSR1 end it with the code that asks a
// launcher to start the run again.
void ask_for_requeue_when_told_to_end() {
  for (const int number : {SIGTERM, SIGUSR1}) std::signal(number, [](int) { std::_Exit(app::kRequeue); });
}

int train_rank(const Words& words) {
  ask_for_requeue_when_told_to_end();  // until the first step, from which on train::StopSignal does better
  std::signal(SIGPIPE, [](int) {});    // Ctrl-C ends the `tee` that reads, too, and the step is to be saved
  train::StartTimes start;
  const config::Settings settings = read_settings(words[1]);
  const World world = init_without_info(settings);
  start.end("ranks");
  train::Run run(world, settings, {.folder = words[2], .resume = words[3] == "resume", .start = start}, {});
  return run.train().requeue ? app::kRequeue : app::kOk;
}

int print_plan(const Words& words) {
  const bool gpu = words.size() > 2 && words[2] == "gpu";
  const std::string text = train::plan_run(read_settings(words[1]), gpu);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw IoError("write", "stdout", errno, "");
  return app::kOk;
}

int generate(const Words& words) {
  const config::Settings settings = read_settings(words[1]);
  set_log_level(LogLevel::warn);  // the world is no news
  const World world = init({.rank = 0, .world_size = 1});
  train::generate_from_run(world, settings, words[2], train::generate_request(words[3]));
  return app::kOk;
}

int doctor_rank(const Words& words) {
  set_log_sink([](LogLevel level, std::string_view line) {
    if (level <= LogLevel::warn) std::fprintf(stderr, "%s\n", format_log_line(level, line).c_str());
  });
  return train::doctor_rank(doctor::Request::from(words[1]));
}

struct Command {
  const char* name;
  size_t least_words, most_words;  // itself included
  int (*run)(const Words& words);  // the exit code
};
constexpr Command kCommands[] = {{"train", 4, 4, train_rank},
                                 {"plan", 2, 3, print_plan},
                                 {"generate", 4, 4, generate},
                                 {"doctor", 2, 2, doctor_rank}};

const Command* find_command(const Words& words) {
  for (const Command& command : kCommands)
    if (!words.empty() && words[0] == command.name && words.size() >= command.least_words &&
        words.size() <= command.most_words)
      return &command;
  return nullptr;
}

// A launcher with an error file shows what is in it, the first failure first. What rank 0 writes to stderr
// could come before that. The stderr of other ranks goes to their logs.
int fail(const std::string& text, int code, int culprit = -1) {
  write_error_file(text, culprit);
  // What follows from another rank's failure is read after it.
  if (culprit >= 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const char* rank = std::getenv("RANK");
  if (rank != nullptr && rank == std::string("0") && std::getenv("TORCHELASTIC_ERROR_FILE") != nullptr)
    return code;
  const std::string line = (rank != nullptr ? "rank " + std::string(rank) + ": " : "") + text;
  std::fprintf(stderr, "fsdp: %s\n", line.c_str());
  return code;
}

int guarded(const Command& command, const Words& words) {
  try {
    return command.run(words);
  } catch (const std::exception& error) {
    const train::Failure failure = train::describe_failure(error);
    return fail(failure.text, failure.exit_code, failure.culprit);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Words words(argv + 1, argv + argc);
  const Command* command = find_command(words);
  const int code = command != nullptr ? guarded(*command, words)
                                      : fail("fsdp-worker is started by the fsdp command", app::kUsage);
  std::fflush(nullptr);
  return code;
}
