#include "app/commands/train.h"

#include <fsdp/error.h>
#include <unistd.h>

#include <iostream>

#include "app/commands/config_flags.h"
#include "app/commands/run_choice.h"
#include "app/commands/run_job.h"
#include "app/commands/run_lock.h"
#include "app/commands/typed.h"
#include "app/commands/worker.h"
#include "app/exit_codes.h"
#include "app/launch/console.h"
#include "app/launch/environment.h"
#include "app/launch/identity.h"
#include "app/launch/own_job.h"
#include "app/launch/supervisor.h"
#include "app/output.h"
#include "trainer/watch/run_folder.h"
#include "trainer/watch/terminal.h"
#include "trainer/watch/wandb.h"

namespace fsdp::app {

namespace {

struct TrainArguments {
  std::string run, resume;
  CLI::Option *run_given = nullptr, *resume_given = nullptr;
  bool dry_run = false;
  std::string command;  // as typed
};

int as_int(const config::Json& value) { return value.is_number_integer() ? value.get<int>() : 0; }

// The resolved run, and the part of this process in it: launcher of a node, or one rank.
struct Plan {
  config::Resolution resolved;
  launch::Identity me = {};
  launch::JobIdentity job = {};
  std::string folder = {};  // --run, else runs/<config>/<stage>
  RunChoice run = {};

  const config::Settings& settings() const { return resolved.settings; }
  // True for rank 0, or for the launcher on node 0: it prints notes and looks at the run's folder.
  bool is_first() const { return me.role == launch::Role::rank ? me.rank == 0 : me.node_rank == 0; }
};

// True if the run is to go on: --resume, or a launcher starts its ranks again. Whether the run is one of this
// job is checked by the first process.
bool goes_on(const TrainArguments& given, const Plan& plan) {
  const bool smoke = plan.settings().peek("mode") == "smoke";
  return given.resume_given->count() > 0 ||
         (plan.job.is_restart() && !smoke && watch::RunFolder{plan.folder}.has_run());
}

// A run that goes on keeps its configuration where file and flags say nothing. Without --config its own
// stands for the file, unless config.yaml of this folder is what its folder is named for.
bool go_on_with(const std::string& folder, const TrainArguments& given, config::Request& request) {
  const watch::RunFolder run{folder};
  if (request.mode == "smoke" || ::access(run.config().c_str(), R_OK) != 0) return false;
  request.run_config = run.config();
  if (!request.config && given.run_given->count() == 0 && ::access("config.yaml", F_OK) == 0)
    request.config = "config.yaml";
  return true;
}

// Ranks that a launcher has started replace num_nodes and devices, so the configuration is resolved again.
Plan make_plan(const TrainArguments& given, config::Request request, std::vector<std::string>& problems) {
  request.will_start = !given.dry_run;
  const config::Environment set = config::process_environment();
  const launch::Environment variables = launch::current_environment();
  config::Machine machine = find_machine();
  Plan plan{.resolved = config::resolve(request, machine, set)};
  plan.folder = given.run_given->count() > 0
                    ? given.run
                    : watch::default_run_folder(plan.settings().name(), plan.settings().stage());
  plan.job = launch::find_job(variables);
  if (goes_on(given, plan) && go_on_with(plan.folder, given, request))
    plan.resolved = config::resolve(request, machine, set);
  try {
    plan.me =
        launch::find_identity(variables, {.nodes = as_int(plan.settings().peek("distributed.num_nodes")),
                                          .ranks = as_int(plan.settings().peek("distributed.devices")),
                                          .command = given.command,
                                          .host = launch::host_name()});
    if (plan.me.role == launch::Role::rank) {
      machine.world_size = plan.me.world_size;
      machine.local_size = plan.me.local_size;
      plan.resolved = config::resolve(request, machine, set);
    }
    problems = plan.resolved.problems;
  } catch (const launch::LaunchError& error) {
    problems = plan.resolved.problems;
    problems.emplace_back(error.what());
  }
  return plan;
}

void choose_run(const TrainArguments& given, Plan& plan, std::vector<std::string>& problems) {
  RunRequest request{.folder = plan.folder,
                     .is_folder_given = given.run_given->count() > 0,
                     .resume = goes_on(given, plan),
                     .starts = !given.dry_run,
                     .is_first = plan.is_first()};
  if (request.resume && given.resume_given->count() == 0 && plan.is_first()) {
    request.restart = describe(plan.job);
    request.resume = plan.job.restarts(read_run_job(plan.folder));
  }
  if (!given.resume.empty() && given.resume != "auto")
    problems.push_back("flag --resume: found '" + given.resume +
                       "', expected auto or nothing; --run names the folder");
  plan.run = choose_run(request, plan.resolved, problems);
}

int dry_run(const Plan& plan) {
  print(plan.settings().to_yaml());
  const std::optional<std::string> worker = find_worker();
  if (!worker) {
    print_notes({missing_worker() + ". Without it there are no units and bytes to show"});
    return kOk;
  }
  try {
    return run_plan(*worker, SettingsFile(plan.settings()));
  } catch (const launch::LaunchError& error) {
    return print_problems({error.what()});
  }
}

// "fsdp: ", over the live line of rank 0 where there is one.
std::string line_begin() {
  return std::string(watch::find_terminal(STDERR_FILENO).live ? "\r\033[K" : "") + "fsdp: ";
}

void say(const std::string& line) { launch::write_soon(launch::Stream::err, line_begin() + line + "\n"); }

int start_ranks(const Plan& plan, const std::vector<std::string>& argv, const SettingsFile& file) {
  const launch::Job job{.argv = argv,
                        .ranks = static_cast<int>(plan.settings().integer("distributed.devices")),
                        .nodes = static_cast<int>(plan.settings().integer("distributed.num_nodes")),
                        .node_rank = plan.me.node_rank,
                        .master_addr = plan.me.master_addr,
                        .master_port = plan.me.master_port,
                        .log_folder = plan.run.log_folder(),
                        .inherited_fds = {file.fd()},
                        .run_id = plan.me.role == launch::Role::alone ? launch::random_run_id() : "none"};
  try {
    const launch::Outcome outcome = launch::run_ranks(job, say);
    if (const std::string report = launch::report(outcome); !report.empty())
      launch::write_soon(launch::Stream::err, line_begin() + report);
    return outcome.exit_code();
  } catch (const launch::LaunchError& error) {
    say(error.what());
    return kFailed;
  }
}

int train(const TrainArguments& given, const config::Request& request) {
  std::vector<std::string> problems;
  Plan plan = make_plan(given, request, problems);
  choose_run(given, plan, problems);
  if (plan.is_first()) print_notes(plan.resolved.notes);
  if (!problems.empty()) return print_problems(problems);
  if (given.dry_run) return plan.is_first() ? dry_run(plan) : kOk;
  if (plan.is_first() && plan.settings().flag("wandb.use_wandb"))
    if (const auto missing = watch::wandb_problem("python3", plan.settings().text("wandb.mode") == "online"))
      return print_problems(
          {plan.settings().origin("wandb.use_wandb").text + ": wandb.use_wandb: " + *missing});
  const std::optional<std::string> worker = find_worker();
  if (!worker) return print_problems({missing_worker()});
  const RunLock lock(plan.is_first() ? plan.run.folder : "", plan.run.resume);
  if (lock.is_taken())
    return print_problems({"another `fsdp train` is running in " + plan.run.folder +
                           ". Wait for it or end it; --run DIR names another folder"});
  if (plan.is_first() && !plan.run.folder.empty()) write_run_job(plan.run.folder, plan.job);
  const SettingsFile file(plan.settings());
  const std::vector<std::string> argv{*worker, "train", file.path(), plan.run.folder,
                                      plan.run.resume ? "resume" : "fresh"};
  if (plan.me.role == launch::Role::rank) {
    lock.keep_on_exec();
    become(argv, file);
  }
  return start_ranks(plan, argv, file);
}

}  // namespace

void add_train(CLI::App& app, Action& action, int argc, char** argv) {
  CLI::App* command = app.add_subcommand(
      "train", "Train a model as a config file says, on ranks of this machine or a cluster");
  command->footer(
      "Alone it starts `devices` ranks on this machine. On several machines it is started once on each, "
      "with\n"
      "MASTER_ADDR, MASTER_PORT and NODE_RANK set. Under torchrun, srun or mpirun it is one rank.\n"
      "SIGINT, SIGTERM or SIGUSR1: the step is finished and saved. A second one: the ranks end at once.\n"
      "After SIGTERM or SIGUSR1 the exit code is 75: start the run again.");
  auto given = std::make_shared<TrainArguments>();
  given->command = typed_command(argc, argv);
  const auto request = add_config_flags(*command);
  given->run_given =
      command->add_option("--run", given->run, "The run's folder; without it runs/<config>/<stage>")
          ->type_name("DIR");
  given->resume_given =
      command->add_option("--resume", given->resume, "Go on with the run of that folder, if it is there")
          ->type_name("[auto]")
          ->expected(0, 1);
  command->add_flag("--dry-run", given->dry_run,
                    "Print configuration, units and bytes per rank; start nothing");
  command->callback(
      [given, request, &action] { action = [given, request] { return train(*given, *request); }; });
}

}  // namespace fsdp::app
