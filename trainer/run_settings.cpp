#include "trainer/run_settings.h"

#include <fsdp/decay_groups.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <utility>

namespace fsdp::train {

namespace {

// false | true | depth: nothing | one unit ahead | that many.
int forward_depth(const Settings& settings) {
  constexpr const char* key = "distributed.fsdp.forward_prefetch";
  if (!settings.is_flag(key)) return static_cast<int>(settings.integer(key));
  return settings.flag(key) ? 1 : 0;
}

// false | true | number: no limit | two slots | that many.
int gather_limit(const Settings& settings) {
  constexpr const char* key = "distributed.fsdp.limit_all_gathers";
  if (!settings.is_flag(key)) return static_cast<int>(settings.integer(key));
  return settings.flag(key) ? 2 : 0;
}

WrapPolicy wrap_policy(const Settings& settings) {
  const std::string wrap = settings.text("distributed.fsdp.wrap");
  const int64_t smallest = settings.integer("distributed.fsdp.min_num_params");
  if (wrap == "whole_model") return whole_model();
  if (wrap == "by_size") return by_size(smallest);
  return {};
}

models::LoraConfig lora_config(const Settings& settings) {
  models::LoraConfig lora{.rank = settings.integer("lora.rank"), .alpha = settings.number("lora.alpha")};
  if (settings.has("lora.targets")) lora.targets = settings.list("lora.targets");
  return lora;
}

Strategy strategy(const Settings& settings) {
  if (settings.text("distributed.strategy") == "ddp") return Strategy::no_shard;
  return parse_strategy(settings.text("distributed.fsdp.sharding_strategy"));
}

}  // namespace

ModelSpec model_spec(const Settings& settings) {
  const models::LoraConfig lora = lora_config(settings);
  if (settings.has("model.script")) {
    TORCH_CHECK(lora.rank == 0, "lora.rank is ", lora.rank, " (", settings.origin("lora.rank").text,
                "), but a TorchScript model gets no adapters: its layers are compiled. Set lora.rank to 0");
    ModelSpec spec;
    spec.name = spec.script = settings.text("model.script");
    spec.type = "script";
    return spec;
  }
  if (settings.has("model.pretrained")) {
    ModelSpec spec = read_hugging_face_spec(settings.text("model.pretrained"));
    spec.name = spec.pretrained;
    spec.lora = lora;
    return spec;
  }
  ModelSpec spec;
  spec.name = settings.text("model.config");
  spec.type = settings.text("model_config.type");
  spec.vocab_size = settings.integer("model_config.vocab_size");
  spec.context_length = settings.integer("model_config.context_length");
  spec.hidden_size = settings.integer("model_config.hidden_size");
  spec.num_layers = settings.integer("model_config.num_layers");
  spec.num_heads = settings.integer("model_config.num_heads");
  if (settings.has("model_config.num_kv_heads"))
    spec.num_kv_heads = settings.integer("model_config.num_kv_heads");
  if (settings.has("model_config.intermediate_size"))
    spec.intermediate_size = settings.integer("model_config.intermediate_size");
  spec.dropout = settings.number("model_config.dropout");
  if (settings.has("model_config.tie_embeddings"))
    spec.tie_embeddings = settings.flag("model_config.tie_embeddings");
  spec.rope_theta = settings.number("model_config.rope_theta");
  spec.norm_eps = settings.number("model_config.norm_eps");
  spec.lora = lora;
  return spec;
}

ShardOptions shard_options(const Settings& settings, const config::BatchPlan& batch) {
  ShardOptions options;
  options.strategy = strategy(settings);
  if (options.strategy == Strategy::hybrid_shard || options.strategy == Strategy::hybrid_shard_zero2)
    options.shard_size = static_cast<int>(settings.integer("distributed.fsdp.shard_size"));
  options.wrap = wrap_policy(settings);
  options.precision = parse_precision(settings.text("training.precision"));
  options.backward_prefetch = parse_backward_prefetch(settings.text("distributed.fsdp.backward_prefetch"));
  options.forward_prefetch = forward_depth(settings);
  options.limit_all_gathers = gather_limit(settings);
  options.sync_batchnorm = settings.flag("distributed.sync_batchnorm");
  if (settings.flag("distributed.fsdp.cpu_offload"))
    options.offload = {.params = true, .gradients = true, .optimizer = true};
  if (settings.flag("logging.debug")) {
    options.check_gradients = settings.text("training.precision") != "16-mixed";
    options.check_replicas_every = 1;
  }
  options.comm.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(1e3 * settings.number("distributed.timeout")));
  if (settings.flag("training.reproducible"))
    options.reproducible = Reproducible{.microbatches = static_cast<int>(batch.microbatches),
                                        .seed = static_cast<uint64_t>(settings.integer("training.seed"))};
  return options;
}

ShardOptions average_options(const ShardOptions& options) {
  ShardOptions average;
  average.strategy = options.strategy;
  average.wrap = options.wrap;
  average.precision.param = options.precision.param;
  average.precision.master = at::kFloat;
  average.offload = options.offload;
  average.comm = options.comm;
  average.shard_size = options.shard_size;
  average.reproducible = options.reproducible;  // it decides how parameters are cut
  return average;
}

config::BatchPlan batch_plan(const Settings& settings, int ranks) {
  config::BatchRequest request{.batch_size = settings.integer("training.batch_size"),
                               .accumulation = settings.integer("training.gradient_accumulation_steps"),
                               .ranks = ranks,
                               .reproducible = settings.flag("training.reproducible")};
  if (settings.has("training.global_batch_size"))
    request.global_batch_size = settings.integer("training.global_batch_size");
  const config::BatchResult result = config::plan_batch(request);
  TORCH_CHECK(result.problem.empty(), result.problem);
  return result.plan;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Settings& settings, const ShardedModel& model) {
  const double rate = settings.number("optimizer.lr"), decay = settings.number("optimizer.weight_decay");
  if (settings.text("optimizer.name") == "sgd") {
    const auto options =
        torch::optim::SGDOptions(rate).momentum(settings.number("optimizer.momentum")).weight_decay(decay);
    return std::make_unique<torch::optim::SGD>(decay_groups(model, options), options);
  }
  const auto options = AdamWOptions(rate)
                           .weight_decay(decay)
                           .betas({settings.number("optimizer.beta1"), settings.number("optimizer.beta2")})
                           .eps(settings.number("optimizer.eps"));
  const auto groups = decay_groups(model, options);
  if (settings.text("optimizer.moments") == "bf16" && settings.text("training.precision") != "bf16-true")
    return std::make_unique<AdamW>(groups, options, at::kBFloat16);
  return std::make_unique<AdamW>(groups, options);
}

ScheduleOptions schedule_options(const Settings& settings, int64_t steps) {
  ScheduleOptions options{.decay = parse_decay(settings.text("schedule.name")),
                          .total_steps = steps,
                          .warmup_steps = settings.integer("schedule.warmup_steps"),
                          .final_ratio = settings.number("schedule.final_lr_ratio")};
  if (options.decay != Decay::constant && settings.has("schedule.decay_steps"))
    options.decay_steps = settings.integer("schedule.decay_steps");
  return options;
}

}  // namespace fsdp::train
