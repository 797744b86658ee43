// The shortest training loop over ranks: an unmodified torch::nn model, sharded in two lines.
//
//   02_shard_mlp --ranks 4                   four CPU ranks: processes of this machine
//   fsdp run --nproc-per-node 4 02_shard_mlp            (or torchrun, srun, mpirun): this is one rank
//
// Expected output (figures differ):
//   torch::nn::SequentialImpl: 12593 parameters in 1 units over 4 ranks; rank 0 holds 25.4%, ...
//   step   0  loss 0.1893
//   ...
//   step 500  loss 0.0203
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

namespace {

void train(fsdp::World& world) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 128), torch::nn::GELU(), torch::nn::Linear(128, 88),
                            torch::nn::GELU(), torch::nn::Linear(88, 1));
  torch::manual_seed(100 + world.rank());  // from here on, every rank has data of its own

  auto model = fsdp::fully_shard(world, net);               // (1) split the model over the ranks
  torch::optim::AdamW optimizer(model.parameters(), 3e-3);  // (2) optimize this rank's slices
  if (world.rank() == 0) std::printf("%s", model.describe().c_str());

  for (int step = 0; step <= 500; ++step) {
    const auto x = torch::randn({64, 8}, world.device());
    const auto y = x.narrow(1, 0, 4).prod(1, /*keepdim=*/true).tanh();
    const auto loss = torch::mse_loss(model(x), y);
    loss.backward();
    model.clip_grad_norm_(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (step % 100 == 0 && world.rank() == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
}

}  // namespace

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
