#include "app/launch/identity.h"

#include <array>
#include <charconv>
#include <optional>

namespace fsdp::launch {

namespace {

constexpr int kHighestPort = 65535;
constexpr const char* kExamplePort = "29500";

// A launcher's variables for the same facts.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Launcher kTorch{"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Launcher kOpenMpi{"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Launcher kSrun{"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                         "SLURM_STEP_TASKS_PER_NODE"};
constexpr Launcher kPmi{"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  // A variable that is set but empty counts as not set.
  bool has(const char* name) const { return !text(name).empty(); }
  std::string text(const char* name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }
  // Throws LaunchError if it is no number from `least` to `most`.
  std::optional<int> number(const char* name, int least, int most) const {
    const std::string value = text(name);
    if (value.empty()) return std::nullopt;
    int found = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), found);
    if (error != std::errc() || end != value.data() + value.size() || found < least || found > most)
      throw LaunchError(assignment(name) + " is not a whole number from " + std::to_string(least) + " to " +
                        std::to_string(most) + ". Correct it, or unset it");
    return found;
  }
  std::string assignment(const char* name) const { return std::string(name) + "=" + text(name); }

 private:
  const Environment& environment_;
};

constexpr int kMany = 1 << 24;

const Launcher* find_launcher(const Variables& variables) {
  if (variables.has("RANK")) return &kTorch;
  // mpirun in a Slurm job starts its daemons by srun, and ranks inherit the daemon's SLURM_PROCID.
  if (variables.has(kOpenMpi.rank)) return &kOpenMpi;
  // A shell that srun --pty or salloc started is no rank.
  const bool is_shell = variables.has("SLURM_PTY_PORT") && variables.text("SLURM_STEP_NUM_TASKS") == "1";
  if (variables.has("SLURM_STEP_ID") && variables.has(kSrun.rank) && !is_shell) return &kSrun;
  if (variables.has(kPmi.rank)) return &kPmi;
  return nullptr;
}

std::string lines_to_type(const Request& request) {
  std::string lines;
  for (int node = 0; node < request.nodes; ++node)
    lines += "\n  node " + std::to_string(node) + ":  MASTER_ADDR=" + request.host +
             " MASTER_PORT=" + kExamplePort + " NODE_RANK=" + std::to_string(node) + " " + request.command;
  return lines +
         "\nMASTER_ADDR is node 0's name or address as the other nodes know it, MASTER_PORT a port that " +
         "is free there.";
}

[[noreturn]] void refuse_rank_alone(const Variables& variables, const Request& request) {
  const std::string rank = variables.assignment("RANK");
  throw LaunchError(rank + " without LOCAL_RANK, with " + std::to_string(request.nodes) +
                    " nodes, can be read in two ways:\n" + "  - a launcher started this process as rank " +
                    variables.text("RANK") +
                    " of all: then it must set LOCAL_RANK and WORLD_SIZE too, as torchrun does;\n" + "  - " +
                    variables.text("RANK") +
                    " is the number of this node: then unset RANK, and set NODE_RANK=" +
                    variables.text("RANK") + ".\nTo start it once per node, type" + lines_to_type(request));
}

// The ranks of this node, or 0: Slurm's list may name several numbers, as in "3(x2),1".
int local_size(const Variables& variables, const Launcher& launcher, int world_size) {
  const std::string text = variables.text(launcher.local_size);
  int found = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
  const bool is_list = text.find(',') != std::string::npos;
  return error == std::errc() && !is_list && found > 0 && found <= world_size ? found : 0;
}

Identity as_rank(const Variables& variables, const Launcher& launcher, const Request& request) {
  if (&launcher == &kTorch && !variables.has("LOCAL_RANK") && request.nodes > 1)
    refuse_rank_alone(variables, request);
  const auto size = variables.number(launcher.size, 1, kMany);
  if (!size)
    throw LaunchError(variables.assignment(launcher.rank) + " is set but " + launcher.size +
                      " is not. A launcher sets both; to start ranks from here, unset " + launcher.rank);
  Identity me;
  me.role = Role::rank;
  me.source = launcher.name;
  me.world_size = *size;
  me.rank = *variables.number(launcher.rank, 0, kMany);
  if (me.rank >= *size)
    throw LaunchError(variables.assignment(launcher.rank) + " is not below " +
                      variables.assignment(launcher.size) + ". Ranks count from 0");
  me.local_rank = variables.number(launcher.local_rank, 0, kMany).value_or(-1);
  if (me.local_rank > me.rank)
    throw LaunchError(variables.assignment(launcher.local_rank) + " contradicts " +
                      variables.assignment(launcher.rank) + ": a local rank is never above the rank");
  me.local_size = local_size(variables, launcher, *size);
  return me;
}

// Facts that cannot be true if this process is a node.
void check_node(const Variables& variables, const Request& request, const Launcher* launcher) {
  const std::string node = variables.assignment("NODE_RANK");
  const std::string nodes = std::to_string(request.nodes);
  if (*variables.number("NODE_RANK", 0, kMany) >= request.nodes)
    throw LaunchError(node + " is not below the number of nodes, " + nodes +
                      ". Nodes count from 0; --nnodes of `fsdp run` and --num-nodes of `fsdp train` set "
                      "their number");
  const auto tasks = launcher != nullptr ? variables.number(launcher->size, 1, kMany) : std::nullopt;
  if (tasks && *tasks != request.nodes)
    throw LaunchError(node + " says that this process starts the ranks of a node, one process on each of " +
                      nodes + " node(s); but " + launcher->name + " started " + std::to_string(*tasks) +
                      " processes (" + launcher->size +
                      "). Start one per node, or unset NODE_RANK to make each " + "process a rank");
  const auto world = launcher == nullptr ? variables.number("WORLD_SIZE", 1, kMany) : std::nullopt;
  if (world && request.ranks > 0 && *world != request.nodes * request.ranks)
    throw LaunchError(variables.assignment("WORLD_SIZE") + " contradicts " + nodes + " node(s) of " +
                      std::to_string(request.ranks) + " ranks. Unset it: it is set for the ranks");
}

Identity as_node(const Variables& variables, const Request& request, const Launcher* launcher) {
  check_node(variables, request, launcher);
  Identity me;
  me.role = Role::node;
  me.source = "NODE_RANK";
  me.node_rank = *variables.number("NODE_RANK", 0, kMany);
  me.master_port = variables.number("MASTER_PORT", 1, kHighestPort).value_or(0);
  if (request.nodes == 1) {
    if (me.master_port != 0 && variables.has("MASTER_ADDR")) me.master_addr = variables.text("MASTER_ADDR");
    return me;
  }
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    if (!variables.has(name))
      throw LaunchError(variables.assignment("NODE_RANK") + " is set but " + name + " is not. Type" +
                        lines_to_type(request));
  me.master_addr = variables.text("MASTER_ADDR");
  return me;
}

}  // namespace

Identity find_identity(const Environment& environment, const Request& request) {
  const Variables variables(environment);
  const Launcher* launcher = find_launcher(variables);
  if (variables.has("NODE_RANK") && launcher != &kTorch) return as_node(variables, request, launcher);
  if (launcher != nullptr) return as_rank(variables, *launcher, request);
  if (variables.has("LOCAL_RANK"))
    throw LaunchError(
        variables.assignment("LOCAL_RANK") +
        " is set but RANK is not. A launcher sets both; to start ranks from here, unset LOCAL_RANK");
  if (request.nodes > 1)
    throw LaunchError(std::to_string(request.nodes) +
                      " nodes, but NODE_RANK is not set: the command is started once on every node. Type" +
                      lines_to_type(request));
  if (const auto world = variables.number("WORLD_SIZE", 1, kMany);
      world && request.ranks > 0 && *world != request.ranks)
    throw LaunchError(variables.assignment("WORLD_SIZE") + " is set but RANK is not, and " +
                      std::to_string(request.ranks) +
                      " ranks were asked for. Unset WORLD_SIZE: it is set for the ranks");
  return {.role = Role::alone, .source = "no launcher"};
}

}  // namespace fsdp::launch
