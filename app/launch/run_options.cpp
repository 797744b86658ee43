#include "app/launch/run_options.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
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

int count_nodes(const RunOptions& options) {
  const size_t colon = options.nnodes.find(':');
  const std::string least = options.nnodes.substr(0, colon);
  if (colon != std::string::npos && options.nnodes.substr(colon + 1) != least)
    refuse("--nnodes", options.nnodes, "elastic sizes are not supported; name one number of nodes");
  const int nodes = to_number("--nnodes", least, 1, kMany);
  if (options.standalone && nodes > 1)
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

// Where ranks meet, as far as options say.
Address find_master(const RunOptions& options) {
  Address master{options.master_addr, options.master_port};
  if (options.rdzv_endpoint.empty()) return master;
  const Address endpoint = parse_endpoint(options.rdzv_endpoint);
  if (endpoint.host.empty()) refuse("--rdzv-endpoint", options.rdzv_endpoint, "expected HOST:PORT");
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

void place_among_nodes(Job& job, const RunOptions& options, const Environment& environment) {
  const Address master = find_master(options);
  Environment seen;
  const auto set = [&](const char* name, const std::string& option) {
    const auto found = environment.find(name);
    if (!option.empty())
      seen[name] = option;
    else if (found != environment.end())
      seen[name] = found->second;
  };
  set("NODE_RANK", options.node_rank);
  set("MASTER_ADDR", master.host);
  set("MASTER_PORT", master.port);
  if (seen.count("MASTER_ADDR") != 0) seen.emplace("MASTER_PORT", kDefaultPort);
  const Identity me = find_identity(
      seen, {.nodes = job.nodes, .ranks = job.ranks, .command = options.typed, .host = host_name()});
  job.node_rank = me.node_rank;
  job.master_addr = me.master_addr;
  job.master_port = me.master_port;
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

void check_rest(const RunOptions& options) {
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
  job.nodes = count_nodes(options);
  if (job.nodes == 1)
    place_on_one_node(job, options);
  else
    place_among_nodes(job, options, environment);
  choose_output(job, options);
  if (!options.rdzv_id.empty()) job.run_id = options.rdzv_id;
  job.max_restarts = to_number("--max-restarts", options.max_restarts, 0, kMany);
  if (job.max_restarts > 0 && job.nodes > 1)
    refuse(
        "--max-restarts", options.max_restarts,
        "ranks of several nodes would have to be started again together, which `fsdp run` does on one node. "
        "Leave it out; torchrun and Ray restart several nodes");
  return job;
}

}  // namespace fsdp::launch
