#include "app/commands/run.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "app/commands/typed.h"
#include "app/commands/world_sizes.h"
#include "app/exit_codes.h"
#include "app/launch/console.h"
#include "app/launch/environment.h"
#include "app/launch/nodes/run_nodes.h"
#include "app/launch/port.h"
#include "app/launch/restarts.h"
#include "app/launch/run_options.h"

namespace fsdp::app {

namespace {

using launch::LaunchError;
using launch::RunOptions;

// As torchrun does: both spellings, and PET_NPROC_PER_NODE and so on for options that are not typed.
// Kubernetes' PyTorchJob sets these.
void add(CLI::App& run, const std::string& name, std::string& value, const std::string& type,
         const std::string& help) {
  std::string other = name;
  std::replace(other.begin() + 2, other.end(), '-', '_');
  std::string variable = "PET" + other.substr(1);
  variable[3] = '_';
  std::transform(variable.begin(), variable.end(), variable.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  run.add_option(other == name ? name : name + "," + other, value, help)->type_name(type)->envname(variable);
}

void add_options(CLI::App& run, RunOptions& options) {
  add(run, "--nproc-per-node", options.nproc_per_node, "N|gpu|cpu|auto",
      "Ranks to start on this node. Default: 1");
  add(run, "--nnodes", options.nnodes, "N|MIN:MAX",
      "Number of nodes. Default: 1. Start the command once on each. MIN:MAX: as many as there are");
  add(run, "--node-rank", options.node_rank, "N",
      "Number of this node, from 0. Default for several nodes: the variable NODE_RANK");
  add(run, "--master-addr", options.master_addr, "HOST",
      "Name or address of node 0, where ranks meet. Default for several nodes: the variable MASTER_ADDR");
  add(run, "--master-port", options.master_port, "PORT",
      "A free port of node 0. Default: any for one node; for several the variable MASTER_PORT, else 29500");
  run.add_flag("--standalone", options.standalone, "One node, any free port: the default");
  add(run, "--rdzv-endpoint", options.rdzv_endpoint, "HOST:PORT", "--master-addr and --master-port in one");
  add(run, "--rdzv-id", options.rdzv_id, "NAME", "The run's name, TORCHELASTIC_RUN_ID");
  add(run, "--rdzv-conf", options.rdzv_conf, "KEY=SECONDS,...",
      "join_timeout: the time for enough nodes to come (600). last_call_timeout: with MIN:MAX, the\n"
      "time for more to come (10; after a failure 3)");
  add(run, "--rdzv-backend", options.rdzv_backend, "c10d|static", "No effect: both mean the same here");
  add(run, "--max-restarts", options.max_restarts, "N",
      "How often to start all ranks again after a failure. Default: 0");
  add(run, "--numa-binding", options.numa_binding, "none|node|exclusive",
      "Processors of a rank: all, those of a NUMA node, or a share of a node's that no other rank has.\n"
      "Default: node on a machine with several NUMA nodes and no GPU, else none");
  add(run, "--monitor-interval", options.monitor_interval, "SECONDS",
      "No effect: the end of a rank is noticed at once");
  add(run, "--log-dir", options.log_dir, "DIR", "Also write each rank's stdout and stderr to DIR/rank-N.log");
  add(run, "--local-ranks-filter", options.local_ranks_filter, "N,...",
      "The local ranks whose output is shown. Default: all");
  add(run, "--tee", options.tee, "STREAMS",
      "Streams to show: 0 none, 1 stdout, 2 stderr, 3 both (default); or by local rank: 0:3,1:2");
  run.add_flag("--no-python,--no_python")->description("No effect: a program is started as it is");
}

// `fsdp run ... fsdp train` means this fsdp, which need not be in PATH.
std::string this_program() {
  std::error_code unknown;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", unknown);
  return unknown ? "fsdp" : path.string();
}

int launch_program(RunOptions options) {
  try {
    const bool is_this_command = !options.command.empty() && options.command[0] == "fsdp";
    if (is_this_command) options.command[0] = this_program();
    const launch::Environment environment = launch::current_environment();
    launch::Job job = launch::make_job(
        options, environment,
        {.processors = launch::usable_processors(), .gpus = launch::usable_gpus(environment)});
    if (is_this_command) job.final_code = kUsage;
    if (job.master_port != 0 && job.node_rank == 0) launch::require_free_port(job.master_port);
    std::optional<launch::Meeting> meeting = launch::make_meeting(options, environment, job);
    if (meeting && meeting->rules.least < meeting->rules.most && is_this_command)
      meeting->rules.usable = world_sizes_that_fit(options.command, job.ranks, meeting->rules.most);
    const launch::Outcome outcome =
        meeting ? launch::run_with_nodes(job, *meeting) : launch::run_with_restarts(job);
    if (const std::string text = launch::report(outcome); !text.empty())
      launch::write_soon(launch::Stream::err, "fsdp: " + text);
    return outcome.exit_code();
  } catch (const LaunchError& error) {
    std::fprintf(stderr, "fsdp: %s\n", error.what());
    return kUsage;
  }
}

bool takes_value(const CLI::App& run, const std::string& word) {
  const CLI::Option* option = run.get_option_no_throw(word);
  return option != nullptr && option->get_items_expected_max() > 0;
}

// The index of the program among the words: behind "--", or at the first word that is no option.
int find_program(const CLI::App& run, int argc, char** argv) {
  int i = 2;
  while (i < argc && argv[i][0] == '-' && std::string(argv[i]) != "--")
    i += takes_value(run, argv[i]) ? 2 : 1;
  return std::min(i, argc);
}

}  // namespace

void add_run(CLI::App& app, Action& action, int& argc, char** argv) {
  CLI::App* run = app.add_subcommand("run", "Start any program as ranks, with torchrun's options");
  auto options = std::make_shared<RunOptions>();
  add_options(*run, *options);
  run->footer(
      "fsdp run [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
      "The ranks find each other by torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, ...\n"
      "Ctrl-C asks the ranks to save and leave; a second one kills them.\n"
      "If a rank fails, the others are ended, and the exit code is that rank's: 128 + n for signal n.");
  if (argc > 1 && run->check_name(argv[1])) {
    options->typed = typed_command(argc, argv);
    const int program = find_program(*run, argc, argv);
    const bool separated = program < argc && std::string(argv[program]) == "--";
    options->command.assign(argv + program + (separated ? 1 : 0), argv + argc);
    argc = program;
  }
  run->callback([options, &action] { action = [options] { return launch_program(*options); }; });
}

}  // namespace fsdp::app
