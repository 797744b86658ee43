// Saves the run every 50 steps. Started again, on any number of ranks, it goes on from the last checkpoint.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

void train(fsdp::World& world) {
  torch::manual_seed(world.rank());
  torch::nn::Sequential net(torch::nn::Linear(8, 128), torch::nn::GELU(), torch::nn::Linear(128, 1));
  auto model = fsdp::fully_shard(world, net);
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  fsdp::RunState run{.model = model, .optimizer = &optimizer};
  if (fsdp::has_checkpoint("mlp.run")) fsdp::load("mlp.run", run);
  if (world.rank() == 0) std::printf("starting at step %ld\n", run.step);
  while (run.step < 400) {
    const auto x = torch::randn({64, 8}, world.device());
    const auto loss = torch::mse_loss(model(x), x.sum(1, /*keepdim=*/true).tanh());
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (++run.step % 50 != 0) continue;
    fsdp::save("mlp.run", run, {.keep_last = 2});
    if (world.rank() == 0) std::printf("step %ld  loss %.6f\n", run.step, loss.item<double>());
  }
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
