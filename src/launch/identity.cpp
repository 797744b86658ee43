#include "launch/identity.h"

#include <fsdp/error.h>
#include <fsdp/version.h>
#include <torch/version.h>
#include <unistd.h>

#include <functional>

#include "base/env.h"

namespace fsdp::detail {

namespace {

constexpr int kDefaultPort = 29500;  // torch's
constexpr int kProtocol = 3;         // raise it if ranks of the old and the new build cannot work together
constexpr int kMaxPort = 65535;
constexpr const char* kLoopback = "127.0.0.1";

[[noreturn]] void refuse(const std::string& message) {
  throw RendezvousError("cannot tell which rank this is: " + message);
}

// A launcher's variables for the same four facts.
struct Names {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names kTorch{"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kSlurm{"SLURM_PROCID and SLURM_NTASKS (srun)", "SLURM_PROCID", "SLURM_NTASKS",
                       "SLURM_LOCALID", nullptr};
constexpr Names kOpenMpi{"OMPI_COMM_WORLD_RANK (OpenMPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi{"PMI_RANK (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                     "MPI_LOCALNRANKS"};

Identity read(const Names& names) {
  const auto rank = env_int(names.rank);
  const auto size = env_int(names.size, 1);
  if (!rank) refuse(std::string(names.size) + " is set but " + names.rank + " is not. Set both, or neither.");
  if (!size) refuse(std::string(names.rank) + " is set but " + names.size + " is not. Set both, or neither.");
  Identity me;
  me.rank = *rank;
  me.size = *size;
  me.local_rank = env_int(names.local_rank);
  if (names.local_size != nullptr) me.local_size = env_int(names.local_size, 1);
  me.source = names.source;
  return me;
}

// Ranks of one job compute the same port without communicating; two jobs of one host rarely share it.
int port_of_job(const std::string& job) {
  constexpr int kFirst = 20000;
  constexpr size_t kSpan = 12000;  // below the ports the kernel gives to clients
  return kFirst + static_cast<int>(std::hash<std::string>{}(job) % kSpan);
}

Identity from_torch() {
  Identity me = read(kTorch);
  me.agent_store = env_flag("TORCHELASTIC_USE_AGENT_STORE");
  if (env_string("TORCHELASTIC_RUN_ID")) me.source += " (torchrun)";
  me.run_key = env_string("TORCHELASTIC_RUN_ID").value_or("") + "/" +
               env_string("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return me;
}

Identity from_slurm() {
  Identity me = read(kSlurm);
  if (const auto other = env_int("WORLD_SIZE", 1); other && *other != me.size)
    refuse("WORLD_SIZE=" + std::to_string(*other) + " contradicts SLURM_NTASKS=" + std::to_string(me.size) +
           ". Unset WORLD_SIZE, or set RANK as well.");
  const auto list = env_string("SLURM_STEP_NODELIST");
  const int nodes = env_int("SLURM_STEP_NUM_NODES", 1).value_or(env_int("SLURM_NNODES", 1).value_or(1));
  me.master_addr = nodes == 1 || !list ? kLoopback : first_slurm_host(*list);
  me.master_port =
      port_of_job(env_string("SLURM_JOB_ID").value_or("") + "." + env_string("SLURM_STEP_ID").value_or(""));
  return me;
}

Identity from_mpi(const Names& names) {
  Identity me = read(names);
  const bool one_host = me.local_size == me.size || me.size == 1;
  if (one_host) {
    me.master_addr = kLoopback;
    // A wrapper around each rank is its parent: only the name of the job is the same for all.
    const auto job = env_string("PMIX_NAMESPACE");
    me.master_port = port_of_job(job ? *job : "mpi." + std::to_string(::getppid()));
  }
  return me;
}

Identity from_options(const InitOptions& options) {
  if (!options.rank) refuse("InitOptions::world_size is set but rank is not. Set both, or neither.");
  if (!options.world_size) refuse("InitOptions::rank is set but world_size is not. Set both, or neither.");
  Identity me;
  me.rank = *options.rank;
  me.size = *options.world_size;
  me.source = "InitOptions";
  return me;
}

Identity choose(const InitOptions& options) {
  const auto set = [](const char* name) { return env_string(name).has_value(); };
  if (options.rank || options.world_size) return from_options(options);
  // A shell that srun --pty or salloc started is no rank.
  const bool is_shell = set("SLURM_PTY_PORT") && env_string("SLURM_STEP_NUM_TASKS") == "1";
  const bool under_srun = set("SLURM_STEP_ID") && set("SLURM_PROCID") && !is_shell;
  if (set("RANK") || (set("WORLD_SIZE") && !under_srun)) return from_torch();
  // mpirun in a Slurm job starts its daemons by srun, and ranks inherit the daemon's SLURM_PROCID: ask
  // OpenMPI first.
  if (set("OMPI_COMM_WORLD_RANK")) return from_mpi(kOpenMpi);
  if (under_srun) return from_slurm();
  if (set("PMI_RANK")) return from_mpi(kPmi);
  Identity alone;
  alone.source = "nothing: this process is alone";
  return alone;
}

void add_meeting_point(Identity& me, const InitOptions& options) {
  if (options.local_rank) me.local_rank = options.local_rank;
  if (options.local_world_size) me.local_size = options.local_world_size;
  if (const auto address = options.master_addr ? options.master_addr : env_string("MASTER_ADDR")) {
    me.master_addr = *address;
    if (me.master_port == 0) me.master_port = kDefaultPort;
  }
  if (const auto port = options.master_port ? options.master_port : env_int("MASTER_PORT", 1))
    me.master_port = *port;
}

void check(const Identity& me) {
  const auto fact = [](const char* name, int value) {
    return std::string(name) + " " + std::to_string(value);
  };
  if (me.size < 1) refuse(fact("world size", me.size) + " (from " + me.source + ") is not at least 1.");
  if (me.rank < 0 || me.rank >= me.size)
    refuse(fact("rank", me.rank) + " is not below the " + fact("world size", me.size) + " (from " +
           me.source + "). Ranks count from 0.");
  if (me.local_rank && *me.local_rank > me.rank)
    refuse(fact("local rank", *me.local_rank) + " contradicts " + fact("rank", me.rank) +
           ": a local rank is never above the rank.");
  if (me.local_rank && me.local_size && *me.local_rank >= *me.local_size)
    refuse(fact("local rank", *me.local_rank) + " is not below the " +
           fact("local world size", *me.local_size) + ".");
  if (me.local_size && *me.local_size > me.size)
    refuse(fact("local world size", *me.local_size) + " contradicts " + fact("world size", me.size) + ".");
  if (me.size > 1 && me.master_addr.empty())
    refuse(
        "there are " + std::to_string(me.size) + " ranks (from " + me.source +
        ") but MASTER_ADDR is not set. Set it to the host of rank 0, and MASTER_PORT to a free port there.");
  if (me.master_port < 0 || me.master_port > kMaxPort)
    refuse(fact("MASTER_PORT", me.master_port) + " is not a port.");
}

}  // namespace

std::string build_id() {
  return std::string("fsdp ") + version() + ", LibTorch " + TORCH_VERSION + ", protocol " +
         std::to_string(kProtocol);
}

Identity find_identity(const InitOptions& options) {
  Identity me = choose(options);
  add_meeting_point(me, options);
  check(me);
  return me;
}

std::string first_slurm_host(const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (comma < bracket) return list.substr(0, comma);
  if (bracket == std::string::npos) return list;
  const size_t end = list.find_first_of("-,]", bracket + 1);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

}  // namespace fsdp::detail
