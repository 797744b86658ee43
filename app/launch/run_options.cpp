#include "app/launch/run_options.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <regex>
#include <sstream>

#include "app/launch/environment.h"
#include "app/launch/identity.h"

namespace fsdp::launch {

namespace {

constexpr int kMany = 1 << 20;
constexpr int kHighestPort = 65535;
constexpr const char* kDefaultPort = "29500";  // torchrun's

[[noreturn]] void refuse(const std::string& option, const std::string& found, const std::string& expected) {
  throw LaunchError(option + " " + found + ": " + expected);
}

int to_number(const std::string& option, const std::string& text, int least, int most,
              const std::string& others = "") {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most)
    refuse(option, text,
           "expected a whole number from " + std::to_string(least) + " to " + std::to_string(most) + others);
  return number;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

struct Nodes {
  int least = 1, most = 1;
};

Nodes count_nodes(const RunOptions& options) {
  const size_t colon = options.nnodes.find(':');
  Nodes nodes;
  nodes.least = to_number("--nnodes", options.nnodes.substr(0, colon), 1, kMany, ", or MIN:MAX");
  nodes.most = colon == std::string::npos
                   ? nodes.least
                   : to_number("--nnodes", options.nnodes.substr(colon + 1), 1, kMany, ", or MIN:MAX");
  if (nodes.least > nodes.most)
    refuse("--nnodes", options.nnodes, "the least is above the most; expected MIN:MAX");
  if (options.standalone && nodes.most > 1)
    refuse("--standalone", "with --nnodes " + options.nnodes,
           "it stands for one node. Leave one of the two out");
  return nodes;
}

int count_ranks(const std::string& text, const Devices& devices) {
  if (text == "cpu" || (text == "auto" && devices.gpus == 0)) return devices.processors;
  if (text != "gpu" && text != "auto")
    return to_number("--nproc-per-node", text, 1, kMany, ", or gpu, cpu or auto");
  if (devices.gpus == 0)
    refuse(
        "--nproc-per-node", "gpu",
        "no GPU is visible. nvidia-smi lists GPUs, CUDA_VISIBLE_DEVICES may hide them; cpu starts a rank per "
        "processor");
  return devices.gpus;
}

struct Address {
  std::string host;
  std::string port;
};

// "host", "host:29500", "[::1]:29500".
Address parse_endpoint(const std::string& text) {
  const size_t bracket = text[0] == '[' ? text.find(']') : std::string::npos;
  if (bracket != std::string::npos)
    return {text.substr(1, bracket - 1), bracket + 2 < text.size() ? text.substr(bracket + 2) : ""};
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// The address of the rendezvous from the options. Fields that no option sets are empty.
Address find_master(const RunOptions& options) {
  Address master{options.master_addr, options.master_port};
  if (options.rdzv_endpoint.empty()) return master;
  const Address endpoint = parse_endpoint(options.rdzv_endpoint);
  if (endpoint.host.empty()) refuse("--rdzv-endpoint", options.rdzv_endpoint, "expected HOST:PORT");
  if (endpoint.port.empty() && options.master_port.empty() && options.nnodes == "1")
    refuse("--rdzv-endpoint", options.rdzv_endpoint,
           "expected HOST:PORT, for example " + endpoint.host + ":" + kDefaultPort);
  if ((!master.host.empty() && master.host != endpoint.host) ||
      (!master.port.empty() && !endpoint.port.empty() && master.port != endpoint.port))
    refuse("--rdzv-endpoint", options.rdzv_endpoint,
           "--master-addr and --master-port say otherwise. They mean the same: leave one out");
  if (!endpoint.port.empty() && endpoint.port != "0") master.port = endpoint.port;
  return {endpoint.host, master.port};
}

void place_on_one_node(Job& job, const RunOptions& options) {
  const Address master = find_master(options);
  if (!options.node_rank.empty()) job.node_rank = to_number("--node-rank", options.node_rank, 0, 0);
  if (!master.host.empty()) job.master_addr = master.host;
  if (!master.port.empty()) job.master_port = to_number("--master-port", master.port, 0, kHighestPort);
}

// NODE_RANK, MASTER_ADDR and MASTER_PORT: from the options, else from the environment.
Environment place_variables(const RunOptions& options, const Environment& environment) {
  const Address master = find_master(options);
  Environment seen;
  const auto set = [&](const char* name, const std::string& option) {
    const auto found = environment.find(name);
    if (!option.empty())
      seen[name] = option;
    else if (found != environment.end() && !found->second.empty())
      seen[name] = found->second;
  };
  set("NODE_RANK", options.node_rank);
  set("MASTER_ADDR", master.host);
  set("MASTER_PORT", master.port);
  if (seen.count("MASTER_ADDR") != 0) seen.emplace("MASTER_PORT", kDefaultPort);
  return seen;
}

bool launchers_meet(const Nodes& nodes, int max_restarts) {
  return nodes.most > 1 && (max_restarts > 0 || nodes.least < nodes.most);
}

// For lines to type on each node, which have NODE_RANK instead.
std::string without_node_rank(const std::string& typed) {
  static const std::regex option("--node[-_]rank(=| +)\\S+ *");
  return std::regex_replace(typed, option, "", std::regex_constants::format_first_only);
}

void place_among_nodes(Job& job, const RunOptions& options, const Environment& environment) {
  const Identity me =
      find_identity(place_variables(options, environment), {.nodes = job.nodes,
                                                            .ranks = job.ranks,
                                                            .command = without_node_rank(options.typed),
                                                            .host = host_name()});
  job.node_rank = me.node_rank;
  job.master_addr = me.master_addr;
  job.master_port = me.master_port;
}

// The ranks' port is chosen in each round.
void place_by_meeting(Job& job, const RunOptions& options, const Environment& environment) {
  const Environment seen = place_variables(options, environment);
  const auto address = seen.find("MASTER_ADDR");
  if (address == seen.end())
    throw LaunchError("found no --rdzv-endpoint; with " + std::to_string(job.nodes) +
                      " nodes, `fsdp run` needs to know where they meet. Type the same on each node:\n  " +
                      "fsdp run --rdzv-endpoint " + host_name() + ":" + kDefaultPort +
                      " ...\nIt is a name or address of one node, as all nodes know it");
  job.master_addr = address->second;
}

AssemblyRules timeouts(const std::string& text) {
  AssemblyRules rules;
  for (const std::string& part : split(text)) {
    const size_t equals = std::min(part.find('='), part.size());
    const std::string key = part.substr(0, equals);
    if (key != "join_timeout" && key != "last_call_timeout" && key != "timeout")
      refuse("--rdzv-conf", part,
             "expected join_timeout=SECONDS or last_call_timeout=SECONDS, with commas between");
    if (equals == part.size()) refuse("--rdzv-conf", part, "expected " + key + "=SECONDS");
    const std::chrono::seconds time(to_number(
        "--rdzv-conf " + key, part.substr(std::min(equals + 1, part.size())), 0, kMany, " (seconds)"));
    if (key == "last_call_timeout")
      rules.first_call = rules.next_call = time;
    else
      rules.join = time;
  }
  return rules;
}

// By local rank; a rank that is not named is not shown.
void choose_streams(Job& job, const std::string& tee) {
  if (tee.empty()) return;
  const std::string streams = ". 0 is nothing, 1 stdout, 2 stderr, 3 both";
  if (tee.find(':') == std::string::npos) {
    const auto all = static_cast<unsigned>(to_number("--tee", tee, 0, 3, streams));
    for (int i = 0; i < job.ranks; ++i) job.streams[job.first_rank() + i] = all;
    return;
  }
  for (int i = 0; i < job.ranks; ++i) job.streams[job.first_rank() + i] = 0;
  for (const std::string& part : split(tee)) {
    const size_t colon = std::min(part.find(':'), part.size());
    const int rank =
        to_number("--tee", part.substr(0, colon), 0, job.ranks - 1, ", the local rank, before ':'");
    job.streams[job.first_rank() + rank] = static_cast<unsigned>(
        to_number("--tee", part.substr(std::min(colon + 1, part.size())), 0, 3, streams));
  }
}

void choose_output(Job& job, const RunOptions& options) {
  job.log_folder = options.log_dir;
  job.shown.clear();
  if (options.local_ranks_filter.empty())
    for (int i = 0; i < job.ranks; ++i) job.shown.push_back(job.first_rank() + i);
  for (const std::string& one : split(options.local_ranks_filter))
    job.shown.push_back(job.first_rank() +
                        to_number("--local-ranks-filter", one, 0, job.ranks - 1, ", numbers of local ranks"));
  choose_streams(job, options.tee);
  std::erase_if(job.shown, [&](int rank) { return job.streams.count(rank) != 0 && job.streams[rank] == 0; });
  // A single rank has the terminal for itself; ranks that only have logs write them without a detour.
  const bool direct = job.ranks == 1 && !job.shown.empty() && job.streams.empty() && job.log_folder.empty();
  const bool only_logs = job.shown.empty() && !job.log_folder.empty();
  job.relayed = !direct && !only_logs;
}

NumaBinding numa_binding(const std::string& text) {
  if (text.empty()) return NumaBinding::automatic;
  if (text == "none") return NumaBinding::none;
  if (text == "node") return NumaBinding::node;
  if (text == "exclusive") return NumaBinding::exclusive;
  refuse("--numa-binding", text, "expected none, node or exclusive");
}

void check_rest(const RunOptions& options) {
  timeouts(options.rdzv_conf);
  if (!options.rdzv_backend.empty() && options.rdzv_backend != "c10d" && options.rdzv_backend != "static")
    refuse("--rdzv-backend", options.rdzv_backend,
           "rank 0 serves a TCP store where ranks meet; expected c10d or static, which mean the same here");
  char* end = nullptr;
  if (!options.monitor_interval.empty() &&
      (std::strtod(options.monitor_interval.c_str(), &end) <= 0 || *end != '\0'))
    refuse("--monitor-interval", options.monitor_interval, "expected seconds, more than 0");
  const std::string& program = options.command.empty() ? "" : options.command[0];
  if (program.ends_with(".py") && ::access(program.c_str(), F_OK) == 0 &&
      ::access(program.c_str(), X_OK) != 0)
    throw LaunchError(program + " is a Python script: type python3 before it");
}

}  // namespace

Job make_job(const RunOptions& options, const Environment& environment, const Devices& devices) {
  if (options.command.empty())
    throw LaunchError("`fsdp run` needs a program: fsdp run --nproc-per-node 4 my_program its arguments");
  check_rest(options);
  Job job{.argv = options.command, .ranks = count_ranks(options.nproc_per_node, devices)};
  job.max_restarts = to_number("--max-restarts", options.max_restarts, 0, kMany);
  const Nodes nodes = count_nodes(options);
  job.nodes = nodes.most;
  if (job.nodes == 1)
    place_on_one_node(job, options);
  else if (launchers_meet(nodes, job.max_restarts))
    place_by_meeting(job, options, environment);
  else
    place_among_nodes(job, options, environment);
  choose_output(job, options);
  job.numa_binding = numa_binding(options.numa_binding);
  if (!options.rdzv_id.empty())
    job.run_id = options.rdzv_id;
  else if (job.nodes == 1)
    job.run_id = random_run_id();
  return job;
}

std::optional<Meeting> make_meeting(const RunOptions& options, const Environment& environment,
                                    const Job& job) {
  const Nodes nodes = count_nodes(options);
  if (!launchers_meet(nodes, job.max_restarts)) return std::nullopt;
  const Environment seen = place_variables(options, environment);
  Meeting meeting{
      .endpoint = {job.master_addr, to_number("--master-port", seen.at("MASTER_PORT"), 1, kHighestPort)},
      .place = -1,
      .rules = timeouts(options.rdzv_conf)};
  if (const auto place = seen.find("NODE_RANK"); place != seen.end())
    meeting.place = to_number("--node-rank", place->second, 0, nodes.most - 1);
  meeting.rules.least = nodes.least;
  meeting.rules.most = nodes.most;
  meeting.rules.max_restarts = job.max_restarts;
  meeting.rules.final_code = job.final_code;
  return meeting;
}

}  // namespace fsdp::launch
