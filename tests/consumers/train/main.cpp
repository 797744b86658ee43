// A user of the installed trainer: trains a few steps as a config file says, and looks at what came back.
#include <fsdp/fsdp.h>
#include <fsdp/train.h>

#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace {

// JSON is YAML.
constexpr const char* kConfig = R"({
  "training": {"batch_size": 2, "max_steps": 6},
  "training_stages": {"stage1": {}},
  "model": {"config": "model_config_own"},
  "model_config_own": {"type": "gpt2", "vocab_size": 257, "context_length": 32, "hidden_size": 16, "num_layers": 2, "num_heads": 2},
  "data": {"sequence_length": 32},
  "schedule": {"name": "constant"}
})";

void train() {
  std::ofstream("consumer.yaml") << kConfig;
  int steps = 0;
  fsdp::TrainHooks hooks;
  hooks.on_step = [&](const fsdp::TrainMetrics&) { ++steps; };
  const auto result =
      fsdp::train_production_mode(fsdp::init(), {.config = "consumer.yaml", .run = "consumer.run"}, hooks);
  std::printf("%d steps, loss %.3f, %s\n", steps, result.metrics.loss, result.checkpoint.c_str());
  if (steps != 6 || !fsdp::has_checkpoint("consumer.run"))
    throw std::runtime_error("the run is not complete");
}

}  // namespace

int main() { return fsdp::run_main(train); }
