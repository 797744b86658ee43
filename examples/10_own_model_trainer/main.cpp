// A module of the program's own, trained by the trainer behind `fsdp train`, from the same config file.
//
//   10_own_model_trainer --ranks 2 --run runs/own --set training.max_steps=30
//   10_own_model_trainer --ranks 3 --run runs/own --set training.max_steps=60 --resume
//
// The file says what to train on and how: data, batch, optimizer, schedule, checkpoints. The program brings
// the model, and gets the metrics of every step. Expected output (figures differ):
//   own model: loss 5.723 -> 3.092 in 30 steps; stopped: all steps done
//   own model: saved runs/own/step-00000030
// Beside the checkpoints the run's folder has config.yaml and metrics.jsonl. `fsdp report runs/own` shows
// them.
#include <fsdp/fsdp.h>
#include <fsdp/train.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>

namespace {

constexpr int64_t kVocabulary = 257;  // of the byte tokenizer: 256 bytes and an end of text
constexpr int64_t kWidth = 64;

// A convolution over a position and two before it, `step` apart: no position sees a later one.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t step) : reach(2 * step) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    conv = register_module("conv",
                           torch::nn::Conv1d(torch::nn::Conv1dOptions(kWidth, kWidth, 3).dilation(step)));
  }
  torch::Tensor forward(const torch::Tensor& x) {  // [batch, time, width]
    const auto before = torch::constant_pad_nd(norm(x).transpose(1, 2), {reach, 0});
    return x + torch::gelu(conv(before)).transpose(1, 2);
  }
  int64_t reach;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Conv1d conv{nullptr};
};
TORCH_MODULE(Block);

// Tokens [batch, time] to logits of the next ones [batch, time, vocabulary].
struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    embed = register_module("embed", torch::nn::Embedding(kVocabulary, kWidth));
    for (const int64_t step : {1, 2, 4, 8}) blocks->push_back(Block(step));
    register_module("blocks", blocks);
    head = register_module("head", torch::nn::Linear(kWidth, kVocabulary));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embed(tokens);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(ConvNet);

// `options` are those of the config file: strategy, precision, prefetching and more.
fsdp::TrainModel make_model(const fsdp::World& world, const fsdp::ShardOptions& options) {
  auto model = fsdp::fully_shard(world, fsdp::on_meta([] { return ConvNet(); }), options);
  const auto loss = [model](const fsdp::Microbatch& batch) mutable {
    // Targets of -100 are not counted, and are ignored here too.
    return torch::nn::functional::cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten());
  };
  return {.model = model, .loss = loss};
}

void train(const fsdp::World& world, const fsdp::TrainRequest& request) {
  double first = -1;
  fsdp::TrainHooks hooks{.model = make_model};
  hooks.on_step = [&](const fsdp::TrainMetrics& metrics) {
    if (first < 0) first = metrics.loss;
  };
  const fsdp::TrainResult result = fsdp::train_production_mode(world, request, hooks);
  if (world.rank() != 0) return;
  std::printf("own model: loss %.3f -> %.3f in %lld steps; stopped: %s\n", first, result.metrics.loss,
              static_cast<long long>(result.metrics.step), result.stop_reason.c_str());
  std::printf("own model: saved %s\n", result.checkpoint.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  fsdp::TrainRequest request{.config = "examples/quickstart.yaml", .run = "runs/own"};
  int ranks = 0;
  CLI::App app("Trains a model of its own as a config file says.");
  app.add_option("--config", request.config, "YAML file");
  app.add_option("--run", request.run, "The run's folder");
  app.add_option("--set", request.set, "Sets a key of the file, as in training.max_steps=80");
  app.add_flag("--resume", request.resume, "Go on with the run that is there");
  app.add_option("--ranks", ranks, "CPU ranks to start; without it, this process is one rank of its launcher")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  return fsdp::run_main([&] {
    const auto rank = [&](fsdp::World& world) { train(world, request); };
    if (ranks > 0) return fsdp::run_local(ranks, rank, {.device = torch::kCPU});
    fsdp::World world = fsdp::init();
    rank(world);
  });
}
