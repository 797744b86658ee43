// Low-rank adaptation (LoRA): frozen base weights with small trainable matrices beside them, and the memory
// that this saves.
//
//   06_lora --ranks 2                        two CPU ranks: processes of this machine
//   fsdp run --nproc-per-node 2 06_lora                 (or torchrun, srun, mpirun): this is one rank
//
// Expected output (figures differ):
//   rank 0 of 2
//   trained             parameters     gradients       moments   loss
//   all                  530.0 KiB     530.0 KiB    1060.0 KiB   1.0150 -> 0.0654
//   low rank only        530.0 KiB      16.0 KiB      32.0 KiB   1.0150 -> 0.0004
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

namespace {

constexpr int64_t kWidth = 256;
constexpr int64_t kRank = 4;  // of the matrices that are added
constexpr int kSteps = 300;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    base = register_module("base", torch::nn::Linear(kWidth, kWidth));
    down = register_parameter("down", torch::randn({kWidth, kRank}) / 16);
    up = register_parameter("up", torch::zeros({kRank, kWidth}));  // at first the base alone counts
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + torch::tanh(base(x) + x.matmul(down).matmul(up));
  }
  torch::nn::Linear base{nullptr};
  torch::Tensor down, up;
};
TORCH_MODULE(Block);

// The function to learn has the same base, with a change of low rank in every block.
torch::nn::Sequential make_net(double change = 0) {
  torch::manual_seed(1);
  torch::nn::Sequential net(Block{}, Block{}, Block{}, Block{});
  for (auto& item : net->named_parameters())
    if (item.key().ends_with("up")) item.value().detach().normal_(0, change);
  return net;
}

void train(const fsdp::World& world, bool lora) {
  const auto net = make_net();
  for (auto& item : net->named_parameters())  // before sharding: frozen shards have no gradient memory
    if (lora && item.key().find("base") != std::string::npos) item.value().set_requires_grad(false);
  auto teacher = make_net(0.3);
  teacher->to(world.device());
  auto model = fsdp::fully_shard(world, net, {.wrap = fsdp::by_type<BlockImpl>()});
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(3e-3));

  torch::manual_seed(100 + world.rank());  // every rank draws batches of its own
  double first = 0, last = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const auto x = torch::randn({32, kWidth}, world.device());
    const auto loss = torch::mse_loss(model(x), teacher->forward(x).detach());
    loss.backward();
    if (step < kSteps) optimizer.step(), optimizer.zero_grad();
    (step == 1 ? first : last) = loss.item<double>();
  }

  size_t moments = 0;
  for (const auto& [key, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*state);
    moments += adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes();
  }
  if (world.rank() > 0) return;
  const auto memory = model.memory_stats();
  const auto kib = [](auto bytes) { return static_cast<double>(bytes) / 1024; };
  std::printf("%-14s %11.1f KiB %9.1f KiB %9.1f KiB   %.4f -> %.4f\n", lora ? "low rank only" : "all",
              kib(memory.parameter_bytes), kib(memory.gradient_bytes), kib(moments), first, last);
}

void compare(fsdp::World& world) {
  at::set_num_threads(1);
  if (world.rank() == 0)
    std::printf("rank 0 of %d\n%-14s %15s %13s %13s   %s\n", world.size(), "trained", "parameters",
                "gradients", "moments", "loss");
  for (const bool lora : {false, true}) train(world, lora);
}

}  // namespace

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, compare); }
