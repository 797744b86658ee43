// What a heartbeat costs a collective: the time of a barrier of two ranks, and of all that a collective shows
// the other ranks. Prints one JSON line.
#include <fsdp/fsdp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "comm/heartbeat/heartbeat.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCalls = 20000;
constexpr int kRounds = 15;

// Best of several rounds: the machine may be shared.
template <class Op>
double microseconds_per_call(Op op) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) op();
    best = std::min(best, std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kCalls);
  }
  return best;
}

void measure(fsdp::World& world) {
  fsdp::Comm comm = world.comm();
  const double barrier = microseconds_per_call([&] { comm.barrier("step"); });
  fsdp::detail::GroupInfo group;
  group.peers = world.peers();
  group.heartbeat = fsdp::detail::heartbeat_of(world);
  comm.barrier("end of the first part");
  // As a collective does: shows its name, is issued, and is waited for.
  const double shown = microseconds_per_call([&] {
    group.heartbeat->note_collective("all_gather", "layers.11.attention");
    { const fsdp::detail::WaitScope issued(group); }
    { const fsdp::detail::WaitScope waited(group); }
  });
  comm.barrier("end");
  if (world.rank() != 0) return;
  std::printf("{\"bench\":\"heartbeat\",\"ranks\":%d,\"barrier_us\":%.3f,\"cost_per_collective_us\":%.3f}\n",
              world.size(), barrier, shown);
}

}  // namespace

int main() {
  return fsdp::run_main([] { fsdp::run_local(2, measure); });
}
