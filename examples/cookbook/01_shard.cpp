// Shards a torch::nn model over the ranks and trains it.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

void train(fsdp::World& world) {
  torch::manual_seed(world.rank());  // the weights become rank 0's; from here on each rank draws its own data
  torch::nn::Sequential net(torch::nn::Linear(8, 128), torch::nn::GELU(), torch::nn::Linear(128, 1));
  auto model = fsdp::fully_shard(world, net, {.wrap = fsdp::by_type<torch::nn::LinearImpl>()});
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  for (int step = 0; step <= 200; ++step) {
    const auto x = torch::randn({64, 8}, world.device());
    const auto loss = torch::mse_loss(model(x), x.sum(1, /*keepdim=*/true).tanh());
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (world.rank() == 0 && step % 100 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
