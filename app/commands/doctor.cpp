#include "app/commands/doctor.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "app/commands/config_flags.h"
#include "app/commands/typed.h"
#include "app/commands/worker.h"
#include "app/exit_codes.h"
#include "app/launch/environment.h"
#include "app/launch/identity.h"
#include "app/launch/supervisor.h"
#include "app/output.h"
#include "trainer/doctor/machine.h"
#include "trainer/doctor/network.h"
#include "trainer/doctor/report.h"
#include "trainer/doctor/request.h"

namespace fsdp::app {

namespace {

struct DoctorArguments {
  doctor::Request request;
  int devices = 0;  // 0: the GPUs, or 2 CPU ranks
};

// Without the worker there is no LibTorch and no collective, but the machine can be looked at.
int check_without_worker(const DoctorArguments& given, int ranks) {
  doctor::Report report;
  doctor::HostReport here{.name = launch::host_name(), .findings = {}};
  here.findings =
      doctor::check_machine({.ranks = ranks, .world_size = ranks, .folder = given.request.folder});
  for (doctor::Finding& one :
       doctor::check_network({.machine = launch::host_name(), .variables = launch::current_environment()}))
    here.findings.push_back(std::move(one));
  report.hosts.push_back(std::move(here));
  report.run.push_back({.level = doctor::Level::problem,
                        .subject = "fsdp-worker",
                        .text = missing_worker(),
                        .advice = "LibTorch, GPUs and collectives were not checked"});
  if (given.request.json)
    print(Json(to_json(report)));
  else
    print(report_text(report));
  return kFailed;
}

int start_ranks(const launch::Identity& me, int ranks, const std::vector<std::string>& argv) {
  const launch::Job job{.argv = argv,
                        .ranks = ranks,
                        .node_rank = me.node_rank,
                        .master_addr = me.master_addr,
                        .master_port = me.master_port,
                        .run_id = launch::random_run_id()};
  const launch::Outcome outcome = launch::run_ranks(job);
  const int code = outcome.exit_code();
  const launch::RankEnd* cause = outcome.cause();
  if (code == kOk || (code == kFailed && cause != nullptr && cause->message.empty()))
    return code;  // the report has the problems
  if (const std::string report = launch::report(outcome); !report.empty()) std::cerr << "fsdp: " << report;
  return code;
}

int run_doctor(const DoctorArguments& given) {
  launch::Environment environment = launch::current_environment();
  const std::string node = environment["NODE_RANK"];
  environment.erase("NODE_RANK");  // ranks of a node would wait for those of others
  const int gpus = launch::usable_gpus(environment);
  constexpr int kCpuRanks = 2;
  const int ranks = given.devices > 0 ? given.devices : gpus > 0 ? gpus : kCpuRanks;
  try {
    const launch::Identity me = launch::find_identity(
        environment, {.ranks = ranks, .command = given.request.typed, .host = launch::host_name()});
    const std::optional<std::string> worker = find_worker();
    if (!worker) return check_without_worker(given, ranks);
    const std::vector<std::string> argv{*worker, "doctor", given.request.text()};
    if (me.role == launch::Role::rank) become(argv);
    if (!node.empty())
      std::cerr << "fsdp: NODE_RANK=" << node
                << " is set, but only this machine is checked. To check all nodes, type on each of them\n"
                   "  fsdp run --nnodes N --node-rank "
                << node << " --master-addr NODE0 --nproc-per-node " << ranks << " fsdp doctor\n";
    return start_ranks(me, ranks, argv);
  } catch (const launch::LaunchError& error) {
    return print_problems({error.what()});
  }
}

}  // namespace

void add_doctor(CLI::App& app, Action& action, int argc, char** argv) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Check this machine, or those of a launcher, and the network between ranks");
  command->footer(
      "Alone it starts a rank per GPU, or 2 CPU ranks. For several machines start it as you start a run:\n"
      "  fsdp run --nproc-per-node 4 fsdp doctor\n"
      "  fsdp run --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 8 fsdp doctor\n"
      "  srun -N2 -n8 fsdp doctor\n"
      "Rank 0 prints the report. The exit code is 1 if there is a problem, 0 if there are only warnings.");
  auto given = std::make_shared<DoctorArguments>();
  given->request.typed = typed_command(argc, argv);
  command->add_option("--devices", given->devices, "Number of ranks to start, if no launcher has")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  command->add_option("--run", given->request.folder, "Folder where runs are to be kept; this one without it")
      ->type_name("DIR");
  command->add_option("--megabytes", given->request.megabytes, "Size of the buffers that are timed")
      ->check(CLI::Range(0.001, 1e5))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--timeout", given->request.timeout, "For ranks to meet, and for each collective")
      ->check(CLI::Range(1, 86400))
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_flag("--json", given->request.json, "Print the report as JSON");
  command->callback([given, &action] { action = [given] { return run_doctor(*given); }; });
}

}  // namespace fsdp::app
