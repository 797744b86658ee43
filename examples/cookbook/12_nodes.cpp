// One program for one machine and for many: the model is sharded inside a machine and replicated across
// machines.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

void train(fsdp::World& world) {
  torch::manual_seed(world.rank());
  torch::nn::Sequential net(torch::nn::Linear(8, 128), torch::nn::GELU(), torch::nn::Linear(128, 1));
  auto model = fsdp::fully_shard(world, net, {.strategy = fsdp::Strategy::hybrid_shard});
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  for (int step = 0; step < 200; ++step) {
    const auto x = torch::randn({64, 8}, world.device());
    torch::mse_loss(model(x), x.sum(1, /*keepdim=*/true).tanh()).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  if (world.rank() != 0) return;
  std::printf("%d ranks (%s) on", world.size(), world.source().c_str());
  for (const auto& host : world.hosts()) std::printf(" %s", host.c_str());
  std::printf("; device of rank 0: %s\n", world.device().str().c_str());
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
