#include <ATen/Parallel.h>
#include <fsdp/error.h>
#include <fsdp/world.h>
#include <sys/resource.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

#include "base/env.h"
#include "base/host.h"
#include "base/host_pool.h"
#include "base/log.h"
#include "launch/enter.h"
#include "launch/rendezvous.h"

namespace fsdp {

World::World(std::shared_ptr<detail::WorldState> state) : state_(std::move(state)) {}

int World::rank() const { return state_->rank; }
int World::size() const { return state_->size; }
int World::local_rank() const { return state_->local_rank; }
int World::local_size() const { return state_->local_size; }
c10::Device World::device() const { return state_->device; }
const std::vector<Peer>& World::peers() const { return state_->peers; }
const std::string& World::source() const { return state_->source; }
const c10::intrusive_ptr<::c10d::Store>& World::store() const { return state_->store; }

std::vector<std::string> World::hosts() const {
  std::vector<std::string> names;
  std::vector<std::string> ids;
  for (const Peer& peer : state_->peers) {
    if (std::find(ids.begin(), ids.end(), peer.host_id) != ids.end()) continue;
    ids.push_back(peer.host_id);
    names.push_back(peer.hostname);
  }
  return names;
}

namespace detail {

namespace {

// OpenMP's threads spin while they wait: if ranks have more threads than there are processors, every operator
// waits for threads that are not running.
void set_threads(std::optional<int> asked, int ranks_on_host) {
  if (asked) {
    if (*asked < 1)
      throw RendezvousError("InitOptions::threads is " + std::to_string(*asked) + "; set it to 1 or more");
    at::set_num_threads(*asked);
    return;
  }
  if (env_string("OMP_NUM_THREADS") || env_string("MKL_NUM_THREADS")) return;
  const int share = std::max(1, usable_cpus() / ranks_on_host);
  if (share < at::get_num_threads()) at::set_num_threads(share);
}

// Rank 0 serves a store with two connections of every rank, and shells allow 1024 open files.
void allow_open_files(int ranks) {
  const rlim_t wanted = 256 + 8 * static_cast<rlim_t>(ranks);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string name_of(const Identity& me) {
  return "rank " + std::to_string(me.rank) + " of " + std::to_string(me.size);
}

void log_meeting(const Identity& me, const WorldState& state, Milliseconds took) {
  log_debug([&] {
    const Peer& self = state.peers[static_cast<size_t>(me.rank)];
    const int threads = at::get_num_threads();
    return name_of(me) + ": all ranks met after " + std::to_string(took.count()) + " ms; host " +
           self.hostname + ", pid " + std::to_string(self.pid) + ", local rank " +
           std::to_string(state.local_rank) + " of " + std::to_string(state.local_size) + ", device " +
           state.device.str() + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  });
}

}  // namespace

void log_identity(const Identity& me) {
  log_debug([&] {
    const bool alone = me.size == 1 && !me.agent_store;
    return name_of(me) + ", from " + me.source + "; store " +
           (alone ? "in this process" : "at " + me.master_addr + ":" + std::to_string(me.master_port)) +
           (me.agent_store ? " (the launcher's)" : "") + "; " + me.build;
  });
}

World enter(const Identity& me, StorePtr store, const InitOptions& options) {
  const auto start = Clock::now();
  auto state = std::make_shared<WorldState>();
  state->rank = me.rank;
  state->size = me.size;
  state->source = me.source;
  state->peers = meet(me, store, options.timeout);
  const Milliseconds took = elapsed_since(start);
  // On a store that outlives a restart, keys of an earlier attempt must not be found.
  state->store = c10::make_intrusive<::c10d::PrefixStore>("fsdp/run/" + me.run_key, std::move(store));
  const Peer& self = state->peers[static_cast<size_t>(me.rank)];
  const auto here = [&](const Peer& peer) { return peer.host_id == self.host_id; };
  const auto end = state->peers.begin() + me.rank;
  state->local_rank =
      me.local_rank.value_or(static_cast<int>(std::count_if(state->peers.begin(), end, here)));
  state->local_size =
      me.local_size.value_or(static_cast<int>(std::count_if(state->peers.begin(), state->peers.end(), here)));
  state->device = choose_device(options.device, state->local_rank);
  set_threads(options.threads, state->local_size);
  if (options.keep_host_memory && state->device.is_cpu()) use_host_pool();
  log_meeting(me, *state, took);
  return World(std::move(state));
}

}  // namespace detail

World init(const InitOptions& options) {
  detail::read_log_level();
  const detail::Identity me = detail::find_identity(options);
  detail::log_identity(me);
  detail::allow_open_files(me.size);
  const auto start = detail::Clock::now();
  detail::StorePtr store = detail::open_store(me, options.timeout);
  detail::log_debug([&] {
    return detail::name_of(me) + " reached the store after " +
           std::to_string(detail::elapsed_since(start).count()) + " ms";
  });
  InitOptions rest = options;  // one timeout for all steps, but always time to read the error
  rest.timeout = std::max(detail::Milliseconds{100}, options.timeout - detail::elapsed_since(start));
  World world = detail::enter(me, std::move(store), rest);
  if (world.rank() == 0)
    detail::log_info("rank and size from " + world.source() + ": " + std::to_string(world.size()) +
                     " rank(s) on " + std::to_string(world.hosts().size()) + " host(s), rank 0 on " +
                     world.device().str());
  return world;
}

}  // namespace fsdp
