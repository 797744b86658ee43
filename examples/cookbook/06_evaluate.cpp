// Measures accuracy on 101 rows, which the ranks cannot divide evenly. Every rank calls the model equally
// often.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

double accuracy(fsdp::World& world, fsdp::Sharded<torch::nn::SequentialImpl>& model, const torch::Tensor& x) {
  const torch::NoGradGuard no_grad;
  model.eval();
  double right = 0;
  // The same number of batches on every rank; their sizes may differ.
  for (const auto& rows : x.tensor_split(world.size())[static_cast<size_t>(world.rank())].tensor_split(4))
    right += model(rows).argmax(1).eq(rows.sum(1).gt(0)).sum().item<double>();
  model.train();
  return world.sum(right) / static_cast<double>(x.size(0));
}

void train(fsdp::World& world) {
  torch::manual_seed(0);
  const auto test = torch::randn({101, 8}, world.device());
  torch::manual_seed(1 + world.rank());
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::Dropout(0.1), torch::nn::Linear(64, 2));
  auto model = fsdp::fully_shard(world, net);
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  for (int step = 1; step <= 200; ++step) {
    const auto x = torch::randn({64, 8}, world.device());
    torch::nn::functional::cross_entropy(model(x), x.sum(1).gt(0).to(torch::kLong)).backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step % 100 != 0) continue;
    const double right = accuracy(world, model, test);
    if (world.rank() == 0) std::printf("step %d  accuracy %.3f\n", step, right);
  }
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
