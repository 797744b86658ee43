// Promise: with LoRA, GPT-2 and Llama train their adapters only, sharded, recomputed and with cached keys and
// values, and everything else stays as it was.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt2.h"
#include "models/llama.h"
#include "support/ranks.h"
#include "train/lora/small_specs.h"
#include "trainer/language_model.h"

namespace fsdp::testing {
namespace {

using models::GPT2LMHeadModel;
using models::LlamaForCausalLM;
using models::LoraConfig;
using train::LanguageModel;

std::map<std::string, std::string> shapes(const torch::nn::Module& module) {
  std::map<std::string, std::string> found;
  for (const auto& item : module.named_parameters())
    if (models::is_adapter(item.key())) found[item.key()] = c10::str(item.value().sizes());
  return found;
}

LlamaForCausalLM make_llama(const LoraConfig& lora) {
  torch::manual_seed(3);
  return LlamaForCausalLM(train::llama_config(spec_of("llama", lora)));
}

GPT2LMHeadModel make_gpt2(const LoraConfig& lora) {
  torch::manual_seed(3);
  return GPT2LMHeadModel(train::gpt2_config(spec_of("gpt2", lora)));
}

TEST(Lora, LlamaHasAdaptersAtTheProjectionsOfItsAttention) {
  const auto found = shapes(*make_llama({.rank = 3}));
  EXPECT_EQ(found.size(), 2U * 4 * 2);
  const std::string layer = "model.layers.1.self_attn.";
  EXPECT_EQ(found.at(layer + "q_proj.lora_A.weight"), "[3, 16]");
  EXPECT_EQ(found.at(layer + "q_proj.lora_B.weight"), "[16, 3]");
  EXPECT_EQ(found.at(layer + "k_proj.lora_B.weight"), "[8, 3]");  // two of four heads
  EXPECT_EQ(found.at(layer + "v_proj.lora_B.weight"), "[8, 3]");
  EXPECT_EQ(found.at(layer + "o_proj.lora_A.weight"), "[3, 16]");
}

TEST(Lora, Gpt2HasAdaptersAtTheProjectionsOfItsAttention) {
  const auto found = shapes(*make_gpt2({.rank = 3}));
  EXPECT_EQ(found.size(), 2U * 2 * 2);
  EXPECT_EQ(found.at("transformer.h.0.attn.c_attn.lora_A.weight"), "[3, 16]");
  EXPECT_EQ(found.at("transformer.h.0.attn.c_attn.lora_B.weight"), "[48, 3]");
  EXPECT_EQ(found.at("transformer.h.1.attn.c_proj.lora_B.weight"), "[16, 3]");
}

TEST(Lora, TargetsAreNamedByTheEndOfTheirNames) {
  const auto llama = shapes(*make_llama({.rank = 2, .targets = {"down_proj", "q_proj"}}));
  EXPECT_EQ(llama.size(), 2U * 2 * 2);
  EXPECT_EQ(llama.at("model.layers.0.mlp.down_proj.lora_A.weight"), "[2, 24]");
  EXPECT_EQ(shapes(*make_gpt2({.rank = 2, .targets = {"c_proj"}})).size(), 2U * 2 * 2);  // attn's and mlp's
  EXPECT_EQ(shapes(*make_gpt2({.rank = 2, .targets = {"mlp.c_proj"}})).size(), 2U * 2);
}

TEST(Lora, RefusesATargetThatNoLayerHas) {
  const std::string words = refusal([] { make_llama({.rank = 2, .targets = {"q_proj", "c_attn"}}); });
  require_words(words, "'c_attn'");
  require_words(words, "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj");
  require_words(refusal([] { make_gpt2({.rank = 2, .targets = {"proj"}}); }), "c_attn, c_fc, c_proj");
  require_words(refusal([] { make_gpt2({.rank = -1}); }), "the rank of adapters is -1");
  require_words(refusal([] { make_gpt2({.rank = 2, .alpha = 0}); }), "alpha of adapters is 0");
}

// `with` computes what `without` does, from the same parameters under the same names.
template <class Net>
void expect_start_of(Net with, Net without) {
  const auto plain = without->named_parameters();
  int64_t same = 0;
  for (const auto& item : with->named_parameters()) {
    EXPECT_EQ(item.value().requires_grad(), models::is_adapter(item.key())) << item.key();
    if (models::is_adapter(item.key())) continue;
    ASSERT_NE(plain.find(item.key()), nullptr) << item.key();
    EXPECT_TRUE(item.value().equal(plain[item.key()])) << item.key();
    ++same;
  }
  EXPECT_EQ(same, std::ssize(plain));
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = torch::randint(kVocab, {2, kContext});
  EXPECT_TRUE(with(tokens).equal(without(tokens)));
}

TEST(Lora, StartsAsTheModelWithoutIt) {
  expect_start_of(make_llama({.rank = 2}), make_llama({}));
  expect_start_of(make_gpt2({.rank = 2}), make_gpt2({}));
}

TEST(Lora, AdaptersStartAsInPeft) {
  auto net = make_llama({.rank = 2});
  for (const auto& item : net->named_parameters()) {
    if (!models::is_adapter(item.key())) continue;
    if (item.key().ends_with("lora_B.weight")) {
      EXPECT_EQ(item.value().abs().max().item<float>(), 0);
      continue;
    }
    const double bound =
        1 / std::sqrt(static_cast<double>(item.value().size(1)));  // kaiming_uniform_(sqrt(5))
    EXPECT_LE(item.value().abs().max().item<double>(), bound);
    EXPECT_GE(item.value().abs().max().item<double>(), bound / 2);
  }
}

// Draws every B, so that the adapters count.
template <class Net>
Net with_values(Net net) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(4);
  for (auto& item : net->named_parameters())
    if (item.key().find("lora_B") != std::string::npos) item.value().normal_(0, 0.5);
  return net;
}

TEST(Lora, AddsTheScaledProduct) {
  auto net = with_values(make_llama({.rank = 2, .alpha = 6}));
  auto& layer = *net->model->layers[0]->as<models::LlamaDecoderLayer>()->self_attn->q_proj;
  const auto of = layer.named_parameters();
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({5, 16});
  const at::Tensor whole = of["weight"] + 3.0 * of["lora_B.weight"].mm(of["lora_A.weight"]);
  EXPECT_LE((layer.forward(x) - at::linear(x, whole)).abs().max().item<double>(), 1e-5);
}

template <class Net>
void expect_cached_logits(Net net) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const at::Tensor tokens = torch::randint(kVocab, {2, kContext}), all = net(tokens);
  models::KeyValues read(kContext);
  for (const int64_t length : {3, 1, 1, 3}) {
    const at::Tensor logits = net->next_logits(tokens.narrow(1, read.length(), length), read);
    EXPECT_LE((logits - all.select(1, read.length() - 1)).abs().max().template item<double>(), 1e-5);
  }
}

TEST(Lora, CountsInCachedDecodingToo) {
  expect_cached_logits(with_values(make_llama({.rank = 2})));
  expect_cached_logits(with_values(make_gpt2({.rank = 2})));
}

using Losses = std::vector<double>;

// Ten steps of AdamW on one batch of four, in microbatches of one on each of `ranks` ranks.
struct Trained {
  Losses losses;
  std::map<std::string, at::Tensor> before, after;
};

std::map<std::string, at::Tensor> values_of(const ShardedModel& model) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : state_dict(model, {.offload = true}))
    values[item.key()] = item.value().boxes.front().tensor;
  return values;
}

Trained train(const std::string& type, int ranks, bool reproducible, bool recompute = false) {
  Trained trained;
  torch::manual_seed(1);
  const at::Tensor tokens = torch::randint(kVocab, {4, kContext + 1});
  run_ranks(ranks, [&](World& world) {
    ShardOptions options;
    if (reproducible) options.reproducible = Reproducible{.microbatches = 4, .seed = 7};
    LanguageModel model = train::make_language_model(world, spec_of(type, {.rank = 2}),
                                                     {.recompute = recompute, .seed = 5}, options);
    std::vector<at::Tensor> adapters;
    for (at::Tensor& one : model.model.parameters())
      if (one.requires_grad()) adapters.push_back(one);
    AdamW optimizer(adapters, AdamWOptions(1e-2));
    {
      const torch::NoGradGuard no_grad;  // larger gradients, so that AdamW does not enlarge rounding
      for (auto& item : model.model.named_parameters())
        if (!models::is_adapter(item.key())) item.value().mul_(4);
    }
    const auto before = values_of(model.model);
    const int64_t each = 4 / ranks;
    Losses losses;
    for (int step = 0; step < 10; ++step) {
      double sum = 0;
      for (int64_t i = 0; i < each; ++i) {
        std::optional<NoSync> no_sync;
        if (i + 1 < each && !reproducible) no_sync = model.model.no_sync();
        const at::Tensor row = tokens.narrow(0, i * ranks + world.rank(), 1);
        const at::Tensor loss = model.loss(row.narrow(1, 0, kContext), row.narrow(1, 1, kContext));
        (reproducible ? loss : loss / each).backward();
        sum += loss.item<double>();
      }
      losses.push_back(
          world.mean(torch::tensor(sum / static_cast<double>(each), torch::kDouble)).item<double>());
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto after = values_of(model.model);
    if (world.rank() == 0) trained = {.losses = losses, .before = before, .after = after};
  });
  return trained;
}

// Their losses differ by rounding only: sums of fp32 in another order, over ten steps.
void expect_close(const Losses& expected, const Losses& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(expected[i], found[i], 1e-4 * expected[i]);
}

TEST(Lora, TrainsAdaptersOnly) {
  for (const char* type : {"gpt2", "llama"}) {
    const Trained one = train(type, 2, /*reproducible=*/false);
    EXPECT_LT(one.losses.back(), 0.9 * one.losses.front()) << type;
    for (const auto& [name, value] : one.after)
      EXPECT_NE(value.equal(one.before.at(name)), models::is_adapter(name)) << name;
  }
}

TEST(Lora, TrainsAlikeOnEveryNumberOfRanks) {
  for (const char* type : {"gpt2", "llama"}) {
    const Losses alone = train(type, 1, /*reproducible=*/false).losses;
    for (const int ranks : {2, 4}) expect_close(alone, train(type, ranks, /*reproducible=*/false).losses);
  }
}

TEST(Lora, TrainsToTheSameBitsInReproducibleMode) {
  for (const char* type : {"gpt2", "llama"}) {
    const Trained alone = train(type, 1, /*reproducible=*/true);
    for (const int ranks : {2, 4}) {
      const Trained more = train(type, ranks, /*reproducible=*/true);
      for (const auto& [name, value] : alone.after) EXPECT_TRUE(value.equal(more.after.at(name))) << name;
    }
  }
}

// The first block's input needs no gradient: the embeddings are frozen.
TEST(Lora, TrainsRecomputedBlocksToTheSameBits) {
  for (const char* type : {"gpt2", "llama"}) {
    const Trained kept = train(type, 2, /*reproducible=*/false);
    const Trained recomputed = train(type, 2, /*reproducible=*/false, /*recompute=*/true);
    for (const auto& [name, value] : kept.after) EXPECT_TRUE(value.equal(recomputed.after.at(name))) << name;
  }
}

}  // namespace
}  // namespace fsdp::testing
