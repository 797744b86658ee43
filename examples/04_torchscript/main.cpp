// Trains a TorchScript model, for example one that PyTorch saved, sharded over ranks.
//
//   04_torchscript --ranks 2                     a small model written here
//   04_torchscript --ranks 2 --model net.pt      a model from a file
//
// forward(x, y) of the file's model takes tensors [64, 16] and [64, 1] and returns the loss. In Python:
//     class Net(torch.nn.Module):
//         def __init__(self):
//             super().__init__()
//             self.layers = torch.nn.Sequential(
//                 torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
//         def forward(self, x, y):
//             return torch.nn.functional.mse_loss(self.layers(x), y)
//     torch.jit.script(Net()).save("net.pt")
//
// Expected output (figures differ):
//   Net: 4112 parameters in 3 units over 2 ranks; rank 0 holds 50.2%, ...
//   step   0  loss 2.4190
//   ...
//   step 200  loss 0.0391
// and with --model
//   wrote net.pt.trained
#include <fsdp/fsdp.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

torch::jit::Module make_block(int64_t width) {
  torch::jit::Module block("Block");
  block.register_parameter("up", torch::randn({width, 4 * width}) / 4, /*is_buffer=*/false);
  block.register_parameter("down", torch::randn({4 * width, width}) / 16, /*is_buffer=*/false);
  block.define(R"(
    def forward(self, x):
        return x + torch.matmul(torch.gelu(torch.matmul(x, self.up)), self.down)
  )");
  return block;
}

torch::jit::Module make_net() {
  torch::manual_seed(1);
  torch::jit::Module net("Net");
  net.register_module("first", make_block(16));
  net.register_module("second", make_block(16));
  net.register_parameter("head", torch::randn({16, 1}) / 4, /*is_buffer=*/false);
  net.define(R"(
    def forward(self, x, y):
        x = self.second.forward(self.first.forward(x))
        return torch.mse_loss(torch.matmul(x, self.head), y)
  )");
  for (auto parameter : net.parameters()) parameter.set_requires_grad(true);
  return net;
}

void train(fsdp::World& world, const std::string& file) {
  at::set_num_threads(1);
  const auto script = file.empty() ? make_net() : torch::jit::load(file);
  torch::manual_seed(100 + world.rank());  // every rank has data of its own

  // Units are submodules of the script. fsdp::by_type_name({"Block"}) would choose the same ones here.
  auto model = fsdp::fully_shard(world, script, {.wrap = fsdp::by_size(1000)});
  torch::optim::AdamW optimizer(model.parameters(), 3e-3);
  if (world.rank() == 0) std::printf("%s", model.describe().c_str());

  for (int step = 0; step <= 200; ++step) {
    const auto x = torch::randn({64, 16}, world.device());
    const auto y = x.narrow(1, 0, 4).sum(1, /*keepdim=*/true).tanh();
    const auto loss = model(x, y).toTensor();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step % 50 == 0 && world.rank() == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }

  if (file.empty()) return;
  const auto whole = model.full_params({.rank0_only = true, .offload = true});
  if (world.rank() != 0) return;
  model.module().save(file + ".trained");  // for torch.jit.load
  std::printf("wrote %s.trained\n", file.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::string file;
  if (argc > 2 && std::strcmp(argv[argc - 2], "--model") == 0) {
    file = argv[argc - 1];
    argc -= 2;
  }
  return fsdp::run_main(argc, argv, [&](fsdp::World& world) { train(world, file); });
}
