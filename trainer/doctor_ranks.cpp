#include "trainer/doctor_ranks.h"

#include <fsdp/error.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "app/exit_codes.h"
#include "trainer/control/control_file.h"
#include "trainer/doctor/machine.h"
#include "trainer/doctor/network.h"
#include "trainer/failure.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace fsdp::train {

namespace {

using doctor::Finding;
using doctor::Findings;
using doctor::Level;

doctor::Variables variables() {
  doctor::Variables found;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string text = *one;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) found[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return found;
}

int number_in(const doctor::Variables& all, const char* name, int otherwise) {
  const auto found = all.find(name);
  return found == all.end() ? otherwise : std::atoi(found->second.c_str());
}

Findings check_host(const doctor::Request& request, int ranks, int world_size, bool uses_gpus,
                    bool several_hosts) {
  Findings findings = doctor::check_machine(
      {.ranks = ranks, .world_size = world_size, .uses_gpus = uses_gpus, .folder = request.folder});
  const doctor::NetworkOptions network{
      .machine = control::host_name(), .several_hosts = several_hosts, .variables = variables()};
  for (Finding& one : doctor::check_network(network)) findings.push_back(std::move(one));
  return findings;
}

// The ranks did not meet: what this machine may have to do with that, as launchers count ranks.
void report_alone(const doctor::Request& request, const std::string& error) {
  const doctor::Variables all = variables();
  if (number_in(all, "LOCAL_RANK", 0) != 0) return;
  const int size = number_in(all, "WORLD_SIZE", 1), here = number_in(all, "LOCAL_WORLD_SIZE", 1);
  doctor::Report report;
  report.hosts.push_back(
      {.name = control::host_name(), .findings = check_host(request, here, size, false, size > here)});
  report.run.push_back({.level = Level::problem,
                        .subject = "meeting",
                        .text = error,
                        .advice = "docs/launching.md, section Start-up errors, has the causes"});
  std::fputs(report_text(report).c_str(), stdout);
  std::fflush(stdout);
}

// Findings of every rank, through the store: it works where collectives may not.
class Exchange {
 public:
  explicit Exchange(const World& world) : world_(world) {}

  void put(const std::string& topic, const nlohmann::json& value) const {
    world_.store()->set(key(topic, world_.rank()),
                        value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  nlohmann::json get(const std::string& topic, int rank) const {
    return nlohmann::json::parse(world_.store()->get_to_str(key(topic, rank)), nullptr, false);
  }

 private:
  static std::string key(const std::string& topic, int rank) {
    return "doctor/" + topic + "/" + std::to_string(rank);
  }
  const World& world_;
};

bool is_first_of_host(const World& world) { return world.local_rank() == 0; }

// "node1, ranks 0 to 3", with the findings of its first rank, and those of the others that differ.
std::vector<doctor::HostReport> collect_hosts(const World& world, const Exchange& exchange) {
  std::map<std::string, std::vector<int>> ranks_of;
  std::vector<std::string> order;
  for (const Peer& peer : world.peers()) {
    if (ranks_of[peer.host_id].empty()) order.push_back(peer.host_id);
    ranks_of[peer.host_id].push_back(peer.rank);
  }
  std::vector<doctor::HostReport> hosts;
  for (const std::string& id : order) {
    const std::vector<int>& ranks = ranks_of[id];
    doctor::HostReport host;
    host.name = world.peers()[static_cast<size_t>(ranks.front())].hostname + ", rank" +
                (ranks.size() > 1 ? "s " : " ") + std::to_string(ranks.front()) +
                (ranks.size() > 1 ? " to " + std::to_string(ranks.back()) : "");
    for (const int rank : ranks)
      for (Finding& one : doctor::findings_from(exchange.get("host", rank)))
        host.findings.push_back(std::move(one));
    hosts.push_back(std::move(host));
  }
  return hosts;
}

// A file that rank 0 writes: do the other hosts see it?
Findings check_shared_folder(const World& world, Comm& comm, const std::string& folder) {
  const std::string path = folder + "/.fsdp-doctor-shared";
  const std::string secret = std::to_string(world.peers().front().pid);
  std::error_code ignored;
  if (world.rank() == 0) std::ofstream(path) << secret;
  comm.barrier("fsdp doctor: the file was written");
  std::string found;
  std::ifstream(path) >> found;
  comm.barrier("fsdp doctor: the file was read");
  if (world.rank() == 0) std::filesystem::remove(path, ignored);
  if (!is_first_of_host(world) || found == secret) return {};
  return {{.level = Level::warning,
           .subject = "disk",
           .text = end_name(world, world.rank()) + " does not see the files of rank 0 in " + folder,
           .advice = "Checkpoints need a folder that all machines share (NFS, Lustre): name it by --run"}};
}

void check_together(const World& world, const doctor::Request& request, const Exchange& exchange,
                    doctor::Report& report) {
  Comm comm = Comm::create(world, {.timeout = std::chrono::seconds(request.timeout)});
  const std::vector<int> ends = ends_of_links(world);
  const bool several_hosts =
      world.peers()[static_cast<size_t>(ends.back())].host_id != world.peers()[0].host_id;
  Findings mine = check_collectives(world, comm);
  if (several_hosts)
    for (Finding& one : check_shared_folder(world, comm, request.folder)) mine.push_back(std::move(one));
  report.timings = time_collectives(world, comm, request.megabytes);
  nlohmann::json links = nlohmann::json::array();
  if (world.size() > 1)
    for (const doctor::Link& link : measure_links(world, comm, ends)) links.push_back(to_json(link));
  const Findings clocks = several_hosts ? check_clocks(world, comm, ends) : Findings{};
  exchange.put("together", doctor::to_json(mine));
  exchange.put("links", links);
  comm.barrier("fsdp doctor: done");
  if (world.rank() != 0) return;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (Finding& one : doctor::findings_from(exchange.get("together", rank)))
      report.run.push_back(std::move(one));
    for (const auto& link : exchange.get("links", rank)) report.links.push_back(doctor::link_from(link));
  }
  if (report.run.empty())
    report.run.push_back(
        {.subject = "collectives",
         .text = "right on " + std::to_string(world.size()) + " ranks, by " + comm.backend_name()});
  if (!report.links.empty()) report.run.push_back(doctor::judge_links(report.links));
  report.run.insert(report.run.end(), clocks.begin(), clocks.end());
}

void print(const doctor::Report& report, const doctor::Request& request) {
  const std::string text =
      request.json ? to_json(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                   : report_text(report);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

World meet(const doctor::Request& request) {
  try {
    return init({.timeout = std::chrono::seconds(request.timeout)});
  } catch (const RendezvousError& error) {
    report_alone(request, error.what());
    throw;
  }
}

}  // namespace

int doctor_rank(const doctor::Request& request) {
  const World world = meet(request);
  const Exchange exchange(world);
  Findings own = check_torch(world);
  const bool several_hosts = world.local_size() < world.size();
  if (is_first_of_host(world)) {
    for (Finding& one :
         check_host(request, world.local_size(), world.size(), world.device().is_cuda(), several_hosts))
      own.push_back(std::move(one));
  } else if (world.device().is_cpu()) {
    own.clear();  // it is that of the first
  }
  exchange.put("host", doctor::to_json(own));
  doctor::Report report;
  if (world.rank() == 0) report.hosts = collect_hosts(world, exchange);
  try {
    check_together(world, request, exchange, report);
  } catch (const std::exception& error) {
    report.run.push_back({.level = Level::problem,
                          .subject = "collectives",
                          .text = describe_failure(error).text,
                          .advice = "docs/troubleshooting.md, section It hangs, has the causes"});
    if (world.rank() == 0) print(report, request);
    throw;
  }
  if (world.rank() != 0) return app::kOk;
  print(report, request);
  return worst(report) == Level::problem ? app::kFailed : app::kOk;
}

}  // namespace fsdp::train
