// save_run FOLDER: trains a small model on three ranks and saves it to FOLDER/run. Then one rank loads it and
// writes what it has in memory as plain bytes, for others to compare with.
// save_run FROM TO: three ranks load FROM, which PyTorch saved, and save it to TO.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    torch::manual_seed(1);
    up = register_module("up", torch::nn::Linear(13, 29));
    mid = register_module("mid", torch::nn::Linear(29, 31));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({31})));
    down = register_module("down", torch::nn::Linear(31, 7));
  }
  torch::Tensor forward(const torch::Tensor& x) { return down(norm(torch::tanh(mid(torch::tanh(up(x)))))); }

  torch::nn::Linear up{nullptr}, mid{nullptr}, down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Net);

void write_bytes(const std::string& path, const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(flat.const_data_ptr()), static_cast<std::streamsize>(flat.nbytes()));
}

void train_and_save(fsdp::World& world, const std::string& folder) {
  auto model = fsdp::fully_shard(world, Net(), {.wrap = fsdp::by_type<torch::nn::LinearImpl>()});
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(3e-3).weight_decay(0.05));
  for (int step = 0; step < 5; ++step) {
    torch::manual_seed(static_cast<uint64_t>(100 + step * world.size() + world.rank()));
    model(torch::randn({8, 13})).square().mean().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  fsdp::save(folder, {.model = model, .optimizer = &optimizer, .step = 5});
}

void load_and_dump(fsdp::World& world, const std::string& folder, const std::string& dump) {
  auto model = fsdp::fully_shard(world, Net());
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1.0));
  fsdp::RunState run{.model = model, .optimizer = &optimizer};
  fsdp::load(folder, run);
  for (const auto& item : model.named_parameters()) {
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(
        *optimizer.state().at(item.value().unsafeGetTensorImpl()));
    write_bytes(dump + "/" + item.key(), item.value());
    write_bytes(dump + "/state." + item.key() + ".exp_avg", state.exp_avg());
    write_bytes(dump + "/state." + item.key() + ".exp_avg_sq", state.exp_avg_sq());
    write_bytes(dump + "/state." + item.key() + ".step",
                torch::tensor(static_cast<double>(state.step()), torch::kFloat));
  }
}

void load_and_save(fsdp::World& world, const std::string& from, const std::string& to) {
  auto model = fsdp::fully_shard(world, Net(), {.wrap = fsdp::by_type<torch::nn::LinearImpl>()});
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(3e-3).weight_decay(0.05));
  fsdp::RunState run{.model = model, .optimizer = &optimizer};
  fsdp::load(from, run);
  fsdp::save(to, run);
  model(torch::ones({8, 13})).square().mean().backward();  // and it goes on
  optimizer.step();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: save_run FOLDER, or save_run FROM TO\n");
    return 2;
  }
  const std::string folder = argv[1];
  try {
    if (argc == 3) {
      fsdp::run_local(3, [&](fsdp::World& world) { load_and_save(world, folder, argv[2]); });
      return 0;
    }
    std::filesystem::create_directories(folder + "/dump");
    fsdp::run_local(3, [&](fsdp::World& world) { train_and_save(world, folder + "/run"); });
    fsdp::run_local(1, [&](fsdp::World& world) { load_and_dump(world, folder + "/run", folder + "/dump"); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "save_run: %s\n", error.what());
    return 1;
  }
  return 0;
}
