// Hybrid sharding: rows of two ranks hold one copy of the model each, and the rows stay equal.
//
//   05_hybrid --ranks 4                      four CPU ranks: two rows of two
//   fsdp run --nproc-per-node 4 05_hybrid               (or torchrun, srun, mpirun): this is one rank
//
// Expected output (figures differ): four lines like
//   rank 0 is in row 0 and holds 51%; layers.1.weight: [0, 4352) on rank 0 (here) [4352, 9216) on rank 1
//   ...
//   rank 3 is in row 1 and holds 49%; layers.1.weight: [0, 4352) on rank 2 [4352, 9216) on rank 3 (here)
//   step   0  loss 0.2789
//   ...
//   step 400  loss 0.0035
//   the rows hold the same values: yes
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "models/mlp.h"

namespace {

constexpr int kRow = 2;  // ranks of a row
constexpr int kSteps = 400;

// One line of every rank, in their order.
void print_in_turn(fsdp::Comm& comm, const std::string& line) {
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (rank == comm.rank()) std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    comm.barrier();
  }
}

std::string holdings(const fsdp::ShardedModel& model, const fsdp::World& world, const std::string& name) {
  std::string text = "rank " + std::to_string(world.rank()) + " is in row " +
                     std::to_string(world.rank() / kRow) + " and holds " +
                     std::to_string(std::lround(100 * model.local_sharding_ratio())) + "%; " + name + ":";
  for (const auto& shard : model.parameter_info(name).shards)
    text += " [" + std::to_string(shard.start) + ", " + std::to_string(shard.start + shard.size) +
            ") on rank " + std::to_string(shard.rank) + (shard.is_local ? " (here)" : "");
  return text;
}

// Whether every row has the bits of the first.
bool rows_are_equal(fsdp::Comm& comm, const fsdp::ShardedModel& model) {
  const torch::NoGradGuard no_grad;
  const auto mine = torch::cat(model.flat_parameters());
  const auto all = torch::empty({comm.size() * mine.numel()}, mine.options());
  comm.all_gather(all, mine, "rows").wait();
  const auto rows = all.view({comm.size() / kRow, -1});
  return rows.eq(rows[0]).all().item<bool>();
}

void train(fsdp::World& world) {
  at::set_num_threads(1);
  auto comm = fsdp::Comm::create(world);
  torch::manual_seed(1);
  const fsdp::models::MLP net(std::vector<int64_t>{8, 96, 96, 1}, fsdp::models::Activation::gelu);
  torch::manual_seed(100 + world.rank());  // every rank draws batches of its own

  auto model = fsdp::fully_shard(world, net, {.strategy = fsdp::Strategy::hybrid_shard, .shard_size = kRow});
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(3e-3));
  print_in_turn(comm, holdings(model, world, "layers.1.weight"));

  for (int step = 0; step <= kSteps; ++step) {
    const auto x = torch::randn({64, 8}, world.device());
    const auto loss = torch::mse_loss(model(x), x.narrow(1, 0, 2).prod(1, /*keepdim=*/true).tanh());
    loss.backward();  // summed in the row, then over the rows
    model.clip_grad_norm_(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (step % 100 == 0 && world.rank() == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
  const bool equal = rows_are_equal(comm, model);
  if (world.rank() == 0) std::printf("the rows hold the same values: %s\n", equal ? "yes" : "NO");
}

}  // namespace

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
