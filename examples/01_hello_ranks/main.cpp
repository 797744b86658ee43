// Ranks meet and exchange data by collectives, which are checked and timed.
//
//   01_hello_ranks --ranks 4                 four CPU ranks: processes of this machine
//   fsdp run --nproc-per-node 4 01_hello_ranks          (or torchrun, srun, mpirun): this is one rank
//
// Expected output (figures differ): a greeting of every rank, then
//   op                    size    GB/s   x memcpy
//   all_gather           1 MiB    13.1        0.9
//   ...
//   every result was checked: ok
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr int kRounds = 20;

double fastest_seconds(const std::function<void()>& work) {
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

double memcpy_seconds(size_t bytes) {
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  return fastest_seconds([&] { std::memcpy(to.data(), from.data(), bytes); });
}

void print_row(const char* op, int64_t bytes, double seconds, double copy) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  std::printf("%-16s %6.0f MiB %7.1f %10.1f\n", op, mib, static_cast<double>(bytes) / seconds / 1e9,
              copy / seconds);
  std::fflush(stdout);
}

void show_collectives(fsdp::Comm& comm, c10::Device device, int64_t bytes) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const int64_t part = bytes / 4 / comm.size();
  const int64_t total = part * comm.size();
  const int rank = comm.rank();

  // Every rank holds one part; afterwards every rank can read all of them.
  const auto shard = at::full({part}, rank, options);
  const auto slot = comm.allocate(fsdp::MemoryUse::gather, total, at::kFloat);
  const double gather = fastest_seconds([&] {
    comm.barrier();
    comm.all_gather(slot, shard, "hello").wait(std::chrono::minutes(1));
  });
  for (int r = 0; r < comm.size(); ++r)
    TORCH_CHECK(slot.narrow(0, r * part, part).eq(r).all().item<bool>(), "rank ", r, "'s part is wrong");

  // Every rank holds a full buffer; afterwards each has the sum of its own part.
  const auto buffer = comm.allocate(fsdp::MemoryUse::reduce, total, at::kFloat);
  auto sum = at::empty({part}, options);
  const double reduce = fastest_seconds([&] {
    comm.claim(buffer);
    buffer.fill_(rank + 1);
    comm.reduce_scatter(sum, buffer, fsdp::ReduceOp::sum, 1.0, "hello").wait(std::chrono::minutes(1));
  });
  TORCH_CHECK(sum.eq(comm.size() * (comm.size() + 1) / 2).all().item<bool>(), "the sum is wrong");

  if (rank != 0) return;
  const double copy = memcpy_seconds(static_cast<size_t>(bytes));
  print_row("all_gather", bytes, gather, copy);
  print_row("reduce_scatter", bytes, reduce, copy);
}

void run(fsdp::World& world) {
  at::set_num_threads(1);
  auto comm = fsdp::Comm::create(world);
  for (int r = 0; r < world.size(); ++r) {
    if (r == world.rank())
      std::printf("hello from rank %d of %d on %s (%s, over %s)\n", world.rank(), world.size(),
                  world.peers()[static_cast<size_t>(r)].hostname.c_str(), world.device().str().c_str(),
                  comm.backend_name());
    std::fflush(stdout);
    comm.barrier();
  }
  if (world.rank() == 0) std::printf("%-16s %10s %7s %10s\n", "op", "size", "GB/s", "x memcpy");
  for (const int64_t mib : {1, 16, 64}) show_collectives(comm, world.device(), mib << 20);
  comm.barrier();
  if (world.rank() == 0) std::printf("every result was checked: ok\n");
}

}  // namespace

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, run); }
