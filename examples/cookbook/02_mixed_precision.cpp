// Computes in bf16. Shards, gradients and optimizer state stay fp32, and so does the loss.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

void train(fsdp::World& world) {
  torch::manual_seed(world.rank());
  torch::nn::Sequential net(torch::nn::Linear(8, 128), torch::nn::GELU(), torch::nn::Linear(128, 1));
  auto model = fsdp::fully_shard(world, net, {.precision = fsdp::bf16()});
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  for (int step = 0; step <= 200; ++step) {
    const auto x = torch::randn({64, 8}, world.device());
    const auto loss = torch::mse_loss(model(x).to(torch::kFloat), x.sum(1, /*keepdim=*/true).tanh());
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (world.rank() == 0 && step % 100 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
