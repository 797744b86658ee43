#include "trainer/language_model.h"

#include <torch/script.h>
#include <torch/torch.h>

#include <memory>
#include <utility>

#include "trainer/data/error.h"

namespace fsdp::train {

namespace {

template <class Net>
LanguageModel shard_net(const World& world, const torch::nn::ModuleHolder<Net>& net,
                        const ShardOptions& sharding) {
  Sharded<Net> model = fully_shard(world, net, sharding);
  const auto loss = [model](const at::Tensor& tokens, const at::Tensor& targets) mutable {
    return model(tokens, targets);
  };
  const auto logits = [model](const at::Tensor& tokens) mutable { return model(tokens, at::Tensor()); };
  const auto start_text = [model, device = world.device()](int64_t context) -> LanguageModel::NextLogits {
    const auto read = std::make_shared<models::KeyValues>(context);
    return [model, device, read](const at::Tensor& tokens) mutable {
      return model.run([&](Net& module) { return module.next_logits(tokens.to(device), *read); });
    };
  };
  const auto capture_step = [model]() -> LanguageModel::Loss {
    const auto step = std::make_shared<Captured<Net>>(capture(model));
    return [step](const at::Tensor& tokens, const at::Tensor& targets) { return (*step)(tokens, targets); };
  };
  return {
      .model = model, .loss = loss, .logits = logits, .start_text = start_text, .capture_step = capture_step};
}

torch::jit::Module load_script(const std::string& path) {
  try {
    return torch::jit::load(path, torch::kCPU);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw data::DataError(
        "model.script: " + path + " cannot be read as TorchScript; torch.jit.script(model).save(\"" + path +
        "\") writes such a file in Python. LibTorch says: " + text.substr(0, text.find(". ")));
  }
}

// A script's forward takes tokens and returns logits.
LanguageModel shard_script(const World& world, const std::string& path, const ShardOptions& sharding) {
  const torch::jit::Module script = load_script(path);
  Sharded<torch::jit::Module> model = fully_shard(world, script, sharding);
  auto logits = [model](const at::Tensor& tokens) mutable {
    const c10::IValue result = model(tokens);
    TORCH_CHECK(result.isTensor() && result.toTensor().dim() == 3,
                "forward of the TorchScript model returned ", result.tagKind(),
                "; expected logits [batch, time, vocabulary] for tokens [batch, time]");
    return result.toTensor();
  };
  auto loss = [logits](const at::Tensor& tokens, const at::Tensor& targets) mutable {
    return at::cross_entropy_loss(logits(tokens).flatten(0, 1).to(torch::kFloat), targets.flatten());
  };
  // A script has no cache that we know of: it reads the whole text for each token.
  const auto start_text = [logits](int64_t /*context*/) -> LanguageModel::NextLogits {
    const auto read = std::make_shared<at::Tensor>();
    return [logits, read](const at::Tensor& tokens) mutable {
      *read = read->defined() ? at::cat({*read, tokens}, 1) : tokens;
      return logits(*read).select(1, -1);
    };
  };
  return {.model = model, .loss = loss, .logits = logits, .start_text = start_text};
}

template <class Config>
Config with_options(Config config, const ModelOptions& options) {
  if (options.recompute) config.run_block = recompute_blocks();
  return config;
}

models::GPT2LMHeadModel gpt2_on_meta(const ModelSpec& spec, const ModelOptions& options) {
  const models::GPT2Config config = with_options(gpt2_config(spec), options);
  return on_meta([&] { return models::GPT2LMHeadModel(config); });
}

models::LlamaForCausalLM llama_on_meta(const ModelSpec& spec, const ModelOptions& options) {
  const models::LlamaConfig config = with_options(llama_config(spec), options);
  return on_meta([&] { return models::LlamaForCausalLM(config); });
}

[[noreturn]] void refuse_type(const ModelSpec& spec) {
  TORCH_CHECK(false, "model type '", spec.type, "'; expected gpt2, llama or script");
}

}  // namespace

LanguageModel make_language_model(const World& world, const ModelSpec& spec, const ModelOptions& options,
                                  const ShardOptions& sharding) {
  if (spec.type == "script") return shard_script(world, spec.script, sharding);
  torch::manual_seed(options.seed);
  if (spec.type == "gpt2") return shard_net(world, gpt2_on_meta(spec, options), sharding);
  if (spec.type == "llama") return shard_net(world, llama_on_meta(spec, options), sharding);
  refuse_type(spec);
}

std::shared_ptr<torch::nn::Module> make_meta_module(const ModelSpec& spec) {
  if (spec.type == "gpt2") return gpt2_on_meta(spec, {}).ptr();
  if (spec.type == "llama") return llama_on_meta(spec, {}).ptr();
  refuse_type(spec);
}

}  // namespace fsdp::train
