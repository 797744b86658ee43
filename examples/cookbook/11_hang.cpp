// Rank 1 gets stuck in step 3. The other ranks do not wait for ever: their error names it.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <chrono>
#include <thread>

void train(fsdp::World& world) {
  torch::manual_seed(world.rank());
  torch::nn::Sequential net(torch::nn::Linear(8, 128), torch::nn::GELU(), torch::nn::Linear(128, 1));
  auto model = fsdp::fully_shard(world, net, {.comm = {.timeout = std::chrono::seconds(1)}});
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  for (int step = 1; step <= 5; ++step) {
    if (world.rank() == 1 && step == 3) std::this_thread::sleep_for(std::chrono::seconds(3));  // the bug
    const auto x = torch::randn({64, 8}, world.device());
    torch::mse_loss(model(x), x.sum(1, /*keepdim=*/true).tanh()).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
