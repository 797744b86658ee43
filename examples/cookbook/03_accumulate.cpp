// Adds up the gradients of four microbatches on each rank, and reduces them once per step.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <optional>

void train(fsdp::World& world) {
  torch::manual_seed(world.rank());
  torch::nn::Sequential net(torch::nn::Linear(8, 128), torch::nn::GELU(), torch::nn::Linear(128, 1));
  auto model = fsdp::fully_shard(world, net);
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  for (int i = 1; i <= 400; ++i) {
    const auto no_sync = i % 4 != 0 ? std::optional(model.no_sync()) : std::nullopt;
    const auto x = torch::randn({16, 8}, world.device());
    const auto loss = torch::mse_loss(model(x), x.sum(1, /*keepdim=*/true).tanh());
    (loss / 4).backward();
    if (i % 4 != 0) continue;
    optimizer.step();
    optimizer.zero_grad();
    if (world.rank() == 0 && i % 200 == 0) std::printf("microbatch %d  loss %.4f\n", i, loss.item<double>());
  }
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
