#include <c10/util/Exception.h>
#include <fsdp/train.h>

#include <thread>

#include "app/config/resolve.h"
#include "trainer/run.h"
#include "trainer/watch/wandb.h"

namespace fsdp {

namespace {

config::Request to_request(const TrainRequest& request, const TrainHooks& hooks) {
  config::Request asked;
  if (!request.config.empty()) asked.config = request.config;
  if (!request.stage.empty()) asked.stage = request.stage;
  asked.mode = request.mode;
  asked.sets = request.set;
  if (!request.model_config_key.empty()) asked.defaults.push_back("model.config=" + request.model_config_key);
  if (request.devices) asked.defaults.push_back("distributed.devices=" + std::to_string(*request.devices));
  if (!request.precision.empty()) asked.defaults.push_back("training.precision=" + request.precision);
  asked.own_model = static_cast<bool>(hooks.model);
  asked.will_start = true;
  return asked;
}

}  // namespace

TrainResult train_production_mode(const World& world, const TrainRequest& request, const TrainHooks& hooks) {
  const config::Machine machine{.gpus = world.device().is_cpu() ? 0 : world.local_size(),
                                .cores = static_cast<int>(std::thread::hardware_concurrency()),
                                .world_size = world.size(),
                                .local_size = world.local_size()};
  const config::Resolution resolved =
      config::resolve(to_request(request, hooks), machine, config::process_environment());
  std::string problems;
  for (const std::string& problem : resolved.problems) problems += "\n  " + problem;
  TORCH_CHECK(problems.empty(), "the configuration is refused:", problems);
  if (world.rank() == 0 && resolved.settings.flag("wandb.use_wandb")) {
    const auto missing = watch::wandb_problem("python3", resolved.settings.text("wandb.mode") == "online");
    TORCH_CHECK(!missing, "wandb.use_wandb: ", missing.value_or(""));
  }
  train::RunRequest run{.folder = request.run, .resume = request.resume, .notes = resolved.notes};
  if (run.folder.empty())
    run.folder = watch::default_run_folder(resolved.settings.name(), resolved.settings.stage());
  if (request.mode == "smoke") run = {.notes = resolved.notes};
  return train::Run(world, resolved.settings, run, hooks).train();
}

}  // namespace fsdp
