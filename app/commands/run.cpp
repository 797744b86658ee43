#include "app/commands/run.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>

#include "app/exit_codes.h"
#include "app/launch/environment.h"
#include "app/launch/port.h"
#include "app/launch/restarts.h"
#include "app/launch/run_options.h"

namespace fsdp::app {

namespace {

using launch::LaunchError;
using launch::RunOptions;

// torchrun knows both spellings.
void add(CLI::App& run, const std::string& name, std::string& value, const std::string& type,
         const std::string& help) {
  std::string other = name;
  std::replace(other.begin() + 2, other.end(), '-', '_');
  run.add_option(other == name ? name : name + "," + other, value, help)->type_name(type);
}

void add_options(CLI::App& run, RunOptions& options) {
  add(run, "--nproc-per-node", options.nproc_per_node, "N|gpu|cpu|auto",
      "Ranks to start on this node. Default: 1");
  add(run, "--nnodes", options.nnodes, "N", "Nodes. Default: 1. The command is started once on each");
  add(run, "--node-rank", options.node_rank, "N", "Which node this is, from 0; or the variable NODE_RANK");
  add(run, "--master-addr", options.master_addr, "HOST",
      "Where ranks meet: node 0, as the other nodes know it; or the variable MASTER_ADDR");
  add(run, "--master-port", options.master_port, "PORT",
      "A free port there. Default: any on one node, else 29500; or the variable MASTER_PORT");
  run.add_flag("--standalone", options.standalone, "One node, any free port: the default");
  add(run, "--rdzv-endpoint", options.rdzv_endpoint, "HOST:PORT", "--master-addr and --master-port in one");
  add(run, "--rdzv-id", options.rdzv_id, "NAME", "The run's name, TORCHELASTIC_RUN_ID");
  add(run, "--rdzv-backend", options.rdzv_backend, "c10d|static", "Accepted; both mean the same here");
  add(run, "--max-restarts", options.max_restarts, "N",
      "How often all ranks are started again after a failure. Default: 0");
  add(run, "--monitor-interval", options.monitor_interval, "SECONDS",
      "Accepted; the end of a rank is noticed at once");
  add(run, "--log-dir", options.log_dir, "DIR", "Each rank's stdout and stderr, as DIR/rank-N.log");
  add(run, "--local-ranks-filter", options.local_ranks_filter, "N,...",
      "The local ranks whose output is shown. Default: all");
  add(run, "--tee", options.tee, "STREAMS",
      "What is shown of them: 0 nothing, 1 stdout, 2 stderr, 3 both (default); or by local rank: 0:3,1:2");
  run.add_flag("--no-python,--no_python")->description("Accepted; a program is started as it is");
}

// What was typed, for messages.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text = "fsdp", word;
  std::getline(file, word, '\0');
  while (std::getline(file, word, '\0'))
    text += " " + (word.find_first_of(" \t\n\"'$\\*?") == std::string::npos ? word : "'" + word + "'");
  return text;
}

int launch_program(RunOptions options) {
  try {
    if (!options.command.empty() && options.command[0].starts_with("-"))
      throw LaunchError(options.command[0] +
                        " is not an option of `fsdp run`. Options of the program come after the program; "
                        "`fsdp run --help` lists those of `fsdp run`");
    options.typed = command_line();
    const launch::Environment environment = launch::current_environment();
    const launch::Job job = launch::make_job(
        options, environment,
        {.processors = launch::usable_processors(), .gpus = launch::usable_gpus(environment)});
    if (job.master_port != 0 && job.node_rank == 0) launch::require_free_port(job.master_port);
    const launch::Outcome outcome = launch::run_with_restarts(job);
    if (const std::string text = report(outcome); !text.empty())
      std::fputs(("fsdp: " + text).c_str(), stderr);
    return outcome.exit_code();
  } catch (const LaunchError& error) {
    std::fprintf(stderr, "fsdp: %s\n", error.what());
    return kUsage;
  }
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  CLI::App* run = app.add_subcommand("run", "Start a program as ranks, with torchrun's options");
  auto options = std::make_shared<RunOptions>();
  add_options(*run, *options);
  run->prefix_command();
  run->footer(
      "fsdp run [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
      "The ranks find each other by torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, ...\n"
      "Ctrl-C asks the ranks to save and leave; a second one kills them.\n"
      "If a rank fails, the others are ended, and the exit code is that rank's: 128 + n for signal n.");
  run->callback([run, options, &action] {
    action = [run, options] {
      options->command = run->remaining();
      return launch_program(*options);
    };
  });
}

std::vector<char*> without_separator(const CLI::App& app, int argc, char** argv) {
  std::vector<char*> words(argv, argv + argc);
  const auto commands =
      app.get_subcommands([](const CLI::App* command) { return command->check_name("run"); });
  if (words.size() < 2 || commands.empty() || !commands[0]->check_name(words[1])) return words;
  for (size_t i = 2; i < words.size(); ++i) {
    const std::string word = words[i];
    if (word == "--") words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
    if (word == "--" || !word.starts_with("-")) break;
    const CLI::Option* option = commands[0]->get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_max() > 0) ++i;  // its value
  }
  return words;
}

}  // namespace fsdp::app
