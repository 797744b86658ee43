// Prints the memory of a training step, unit by unit, and how often, how much and how long ranks
// communicated.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

void train(fsdp::World& world) {
  torch::manual_seed(world.rank());
  torch::nn::Sequential net(torch::nn::Linear(64, 512), torch::nn::GELU(), torch::nn::Linear(512, 64));
  auto model = fsdp::fully_shard(world, net, {.wrap = fsdp::by_type<torch::nn::LinearImpl>()});
  torch::optim::AdamW optimizer(model.parameters(), 1e-3);
  model.record_memory(true);
  for (int step = 0; step < 5; ++step) {
    const auto x = torch::randn({64, 64}, world.device());
    torch::mse_loss(model(x), x.roll(1, 1)).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  if (world.rank() != 0) return;
  std::printf("%s", fsdp::format_timeline(model.memory_timeline()).c_str());
  std::printf("peak: %ld bytes\n", model.memory_stats().peak_bytes);
  for (const auto& op : model.comm_stats())
    std::printf("%-16s %4ld times  %8ld bytes  %.4f s\n", op.op.c_str(), op.count, op.bytes, op.seconds);
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
