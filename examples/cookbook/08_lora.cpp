// Trains matrices of low rank beside frozen layers, and saves nothing but these.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

struct LoRAImpl : torch::nn::Module {
  LoRAImpl(int64_t width, int64_t rank) {
    base = register_module("base", torch::nn::Linear(width, width));
    down = register_parameter("lora_down", torch::randn({width, rank}) / 16);
    up = register_parameter("lora_up", torch::zeros({rank, width}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + (base(x) + x.matmul(down).matmul(up)).tanh(); }
  torch::nn::Linear base{nullptr};
  torch::Tensor down, up;
};
TORCH_MODULE(LoRA);

bool is_adapter(const std::string& name) { return name.find("lora_") != std::string::npos; }

void train(fsdp::World& world) {
  torch::manual_seed(world.rank());
  torch::nn::Sequential net(LoRA(64, 4), LoRA(64, 4), LoRA(64, 4));
  for (auto& item : net->named_parameters()) item.value().set_requires_grad(is_adapter(item.key()));
  auto model = fsdp::fully_shard(world, net, {.wrap = fsdp::by_type<LoRAImpl>()});
  torch::optim::AdamW optimizer(model.parameters(), 3e-3);
  fsdp::RunState run{.model = model, .optimizer = &optimizer};
  while (run.step < 100) {
    const auto x = torch::randn({32, 64}, world.device());
    const auto loss = torch::mse_loss(model(x).select(1, 0), x.select(1, 1));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (++run.step % 50 == 0 && world.rank() == 0)
      std::printf("step %ld  loss %.4f\n", run.step, loss.item<double>());
  }
  const std::string saved = fsdp::save("lora.run", run, {.filter = is_adapter});
  if (world.rank() == 0) std::printf("saved %s\n", saved.c_str());
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
