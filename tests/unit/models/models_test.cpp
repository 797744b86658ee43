#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "models/convnet.h"
#include "models/gpt2.h"
#include "models/llama.h"
#include "models/mlp.h"

namespace fsdp::testing {
namespace {

using namespace models;  // NOLINT
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Names = std::vector<std::string>;

constexpr int64_t kVocab = 17;

GPT2Config tiny_gpt2() {
  return {.vocab_size = kVocab, .n_positions = 12, .n_embd = 8, .n_layer = 2, .n_head = 2};
}

LlamaConfig tiny_llama() {
  return {.vocab_size = kVocab,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .max_position_embeddings = 12};
}

torch::Tensor random_ids(int64_t batch = 2, int64_t time = 10) {
  return torch::randint(kVocab, {batch, time}, torch::kLong);
}

// "name [2, 3]" of every parameter, in order.
template <class M>
Names names_and_shapes(const M& model) {
  Names lines;
  for (const auto& item : model.named_parameters()) {
    lines.push_back(item.key() + " " + c10::str(item.value().sizes()));
  }
  return lines;
}

template <class M>
int64_t num_parameters(const M& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

const torch::nn::Module& as_module(const torch::nn::Module& model) { return model; }

TEST(GPT2, HasTheNamesAndShapesOfHuggingFace) {
  auto config = tiny_gpt2();
  config.n_layer = 1;
  const Names expected = {
      "transformer.wte.weight [17, 8]",   //
      "transformer.wpe.weight [12, 8]",   //
      "transformer.h.0.ln_1.weight [8]",  //
      "transformer.h.0.ln_1.bias [8]",    //
      "transformer.h.0.attn.c_attn.weight [8, 24]",
      "transformer.h.0.attn.c_attn.bias [24]",  //
      "transformer.h.0.attn.c_proj.weight [8, 8]",
      "transformer.h.0.attn.c_proj.bias [8]",     //
      "transformer.h.0.ln_2.weight [8]",          //
      "transformer.h.0.ln_2.bias [8]",            //
      "transformer.h.0.mlp.c_fc.weight [8, 32]",  //
      "transformer.h.0.mlp.c_fc.bias [32]",       //
      "transformer.h.0.mlp.c_proj.weight [32, 8]",
      "transformer.h.0.mlp.c_proj.bias [8]",  //
      "transformer.ln_f.weight [8]",          //
      "transformer.ln_f.bias [8]",
  };
  EXPECT_THAT(names_and_shapes(*GPT2LMHeadModel(config)), ElementsAreArray(expected));

  config.tie_word_embeddings = false;
  auto untied = expected;
  untied.push_back("lm_head.weight [17, 8]");
  EXPECT_THAT(names_and_shapes(*GPT2LMHeadModel(config)), ElementsAreArray(untied));
}

TEST(Llama, HasTheNamesAndShapesOfHuggingFace) {
  auto config = tiny_llama();
  config.num_hidden_layers = 1;
  const Names expected = {
      "model.embed_tokens.weight [17, 16]",
      "model.layers.0.self_attn.q_proj.weight [16, 16]",
      "model.layers.0.self_attn.k_proj.weight [8, 16]",
      "model.layers.0.self_attn.v_proj.weight [8, 16]",
      "model.layers.0.self_attn.o_proj.weight [16, 16]",
      "model.layers.0.mlp.gate_proj.weight [24, 16]",
      "model.layers.0.mlp.up_proj.weight [24, 16]",
      "model.layers.0.mlp.down_proj.weight [16, 24]",
      "model.layers.0.input_layernorm.weight [16]",
      "model.layers.0.post_attention_layernorm.weight [16]",
      "model.norm.weight [16]",
      "lm_head.weight [17, 16]",
  };
  LlamaForCausalLM model(config);
  EXPECT_THAT(names_and_shapes(*model), ElementsAreArray(expected));
  model(random_ids());
  EXPECT_TRUE(model->buffers().empty()) << "the rotary tables must not reach a checkpoint";

  config.tie_word_embeddings = true;
  EXPECT_THAT(names_and_shapes(*LlamaForCausalLM(config)),
              ElementsAreArray(expected.begin(), expected.end() - 1));
}

TEST(MLP, NamesItsLayers) {
  EXPECT_THAT(names_and_shapes(*MLP(std::vector<int64_t>{4, 8, 3})),
              ElementsAre("layers.0.weight [8, 4]", "layers.0.bias [8]", "layers.1.weight [3, 8]",
                          "layers.1.bias [3]"));
}

TEST(MLP, ActivatesBetweenItsLayersOnly) {
  MLP model(std::vector<int64_t>{2, 2, 1}, Activation::relu);
  torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.fill_(-1.0);
  // Hidden: relu(-1 * x - 1 * x - 1) = 0 for x = 1 and 1 for x = -1; then -sum(hidden) - 1.
  EXPECT_EQ(model(torch::full({2}, 1.0)).item<float>(), -1.0);
  EXPECT_EQ(model(torch::full({2}, -1.0)).item<float>(), -3.0);
}

TEST(ConvNet, KeepsStatisticsAsBuffers) {
  ConvNet model(ConvNetConfig{.num_classes = 5, .width = 4, .num_blocks = 2});
  EXPECT_THAT(
      names_and_shapes(*model),
      ElementsAre("conv1.weight [4, 3, 3, 3]", "bn1.weight [4]", "bn1.bias [4]",
                  "blocks.0.conv1.weight [4, 4, 3, 3]", "blocks.0.bn1.weight [4]", "blocks.0.bn1.bias [4]",
                  "blocks.0.conv2.weight [4, 4, 3, 3]", "blocks.0.bn2.weight [4]", "blocks.0.bn2.bias [4]",
                  "blocks.1.conv1.weight [8, 4, 3, 3]", "blocks.1.bn1.weight [8]", "blocks.1.bn1.bias [8]",
                  "blocks.1.conv2.weight [8, 8, 3, 3]", "blocks.1.bn2.weight [8]", "blocks.1.bn2.bias [8]",
                  "blocks.1.downsample.weight [8, 4, 1, 1]", "fc.weight [5, 8]", "fc.bias [5]"));
  EXPECT_EQ(model->named_buffers().size(), 3 * 5) << "mean, variance and count of 5 batch norms";

  const auto mean = model->named_buffers()["blocks.1.bn2.running_mean"];
  const auto before = mean.clone();
  const auto images = torch::randn({2, 3, 9, 7});
  EXPECT_EQ(model(images).sizes(), (std::vector<int64_t>{2, 5}));
  EXPECT_FALSE(mean.equal(before)) << "training updates the statistics";
  model->eval();
  const auto trained = mean.clone();
  model(images);
  EXPECT_TRUE(mean.equal(trained)) << "evaluation does not";
}

TEST(GPT2, CountsAsTheFormulaSays) {
  const auto config = tiny_gpt2();
  const int64_t d = config.n_embd;
  const int64_t block =
      12 * d * d + 13 * d;  // c_attn, c_proj, c_fc, c_proj; their biases 9d, two layer norms 4d
  EXPECT_EQ(num_parameters(*GPT2LMHeadModel(config)),
            (config.vocab_size + config.n_positions) * d + config.n_layer * block + 2 * d);
}

// The formula of bench/peers: untied, no biases, ffn rounded up to 256.
TEST(Llama, CountsAsTheFormulaSays) {
  const LlamaConfig config{
      .vocab_size = 100, .hidden_size = 192, .num_hidden_layers = 3, .num_attention_heads = 2};
  const int64_t d = 192, ffn = 512;
  EXPECT_EQ(num_parameters(*LlamaForCausalLM(config)),
            2 * 100 * d + 3 * (4 * d * d + 3 * d * ffn + 2 * d) + d);
}

TEST(GPT2, StartsAsGPT2Does) {
  auto config = tiny_gpt2();
  config.n_embd = 128;
  config.n_layer = 8;
  torch::manual_seed(0);
  GPT2LMHeadModel model(config);
  for (const auto& item : model->named_parameters()) {
    SCOPED_TRACE(item.key());
    const auto& value = item.value();
    if (item.key().find("bias") != std::string::npos) {
      EXPECT_TRUE(value.equal(torch::zeros_like(value)));
    } else if (item.key().find("ln_") != std::string::npos) {
      EXPECT_TRUE(value.equal(torch::ones_like(value)));
    } else {
      // 0.02 / sqrt(2 * 8). 1536 values or more: the deviation of a sample's is at most 2%, so 10% is 5 of
      // them.
      const double std = item.key().find("c_proj") != std::string::npos ? 0.005 : 0.02;
      EXPECT_NEAR(value.std().item<double>(), std, 0.1 * std);
    }
  }
}

TEST(Llama, StartsAsItsConfigSays) {
  auto config = tiny_llama();
  config.hidden_size = 128;
  config.initializer_range = 0.05;
  torch::manual_seed(0);
  for (const auto& parameter : LlamaForCausalLM(config)->parameters()) {
    if (parameter.dim() == 1) {
      EXPECT_TRUE(parameter.equal(torch::ones_like(parameter)));
    } else {
      EXPECT_NEAR(parameter.std().item<double>(), 0.05, 0.005);  // 2176 values or more, as above
    }
  }
}

// A tied weight is one tensor under two names, and its gradient is the sum of what the untied pair gets.
template <class M, class Config>
void expect_tied(Config config, const std::string& embedding) {
  config.tie_word_embeddings = true;
  torch::manual_seed(1);
  M tied(config);
  const auto all = as_module(*tied).named_parameters();
  EXPECT_EQ(all[embedding].unsafeGetTensorImpl(), all["lm_head.weight"].unsafeGetTensorImpl());
  EXPECT_EQ(tied->lm_head->weight.unsafeGetTensorImpl(), all[embedding].unsafeGetTensorImpl());
  EXPECT_EQ(tied->parameters().size(), all.size() - 1);
  EXPECT_TRUE(tied->named_parameters().contains(embedding));

  config.tie_word_embeddings = false;
  M untied(config);
  {
    torch::NoGradGuard no_grad;
    for (auto& item : as_module(*untied).named_parameters()) item.value().copy_(all[item.key()]);
  }
  const auto ids = random_ids(), targets = random_ids();
  tied(ids, targets).backward();
  untied(ids, targets).backward();
  const auto separate = untied->named_parameters();
  const auto both = separate[embedding].grad() + separate["lm_head.weight"].grad();
  EXPECT_GT(separate[embedding].grad().abs().max().template item<float>(), 0);
  // Two fp32 sums of the same terms in another order.
  EXPECT_TRUE(torch::allclose(all[embedding].grad(), both, 1e-5, 1e-7));
}

TEST(GPT2, TiesItsWeightsAsPythonDoes) {
  expect_tied<GPT2LMHeadModel>(tiny_gpt2(), "transformer.wte.weight");
}
TEST(Llama, TiesItsWeightsAsPythonDoes) {
  expect_tied<LlamaForCausalLM>(tiny_llama(), "model.embed_tokens.weight");
}

TEST(GPT2, StaysTiedWhenItMoves) {
  GPT2LMHeadModel model(tiny_gpt2());
  model->to(torch::kBFloat16);
  EXPECT_TRUE(model->lm_head->weight.is_same(model->transformer->wte->weight));
  EXPECT_EQ(model->lm_head->weight.scalar_type(), torch::kBFloat16);
}

// A later token must not change what was said before it, and must change what is said from it on.
template <class M>
void expect_causal(M model) {
  torch::NoGradGuard no_grad;
  const auto ids = random_ids();
  auto changed = ids.clone();
  changed.select(1, 6).add_(1).remainder_(kVocab);
  const auto before = model(ids), after = model(changed);
  EXPECT_TRUE(before.narrow(1, 0, 6).equal(after.narrow(1, 0, 6)));
  for (int64_t t = 6; t < 10; ++t)
    EXPECT_FALSE(before.select(1, t).equal(after.select(1, t))) << "position " << t;
}

TEST(GPT2, SeesNoLaterToken) { expect_causal(GPT2LMHeadModel(tiny_gpt2())); }
TEST(Llama, SeesNoLaterToken) { expect_causal(LlamaForCausalLM(tiny_llama())); }

TEST(GPT2, DependsOnThePosition) {
  GPT2LMHeadModel model(tiny_gpt2());
  const auto logits = model(torch::full({1, 4}, 3, torch::kLong));
  EXPECT_FALSE(torch::allclose(logits.select(1, 0), logits.select(1, 1)));
}

TEST(GPT2, RefusesALongerSequenceInWords) {
  GPT2LMHeadModel model(tiny_gpt2());
  EXPECT_THAT([&] { model(random_ids(1, 13)); }, ThrowsMessage<c10::Error>(HasSubstr("n_positions is 12")));
}

TEST(Llama, RefusesALongerSequenceInWords) {
  LlamaForCausalLM model(tiny_llama());
  EXPECT_THAT([&] { model(random_ids(1, 13)); },
              ThrowsMessage<c10::Error>(HasSubstr("max_position_embeddings is 12")));
}

TEST(Llama, TrainsAfterInference) {
  LlamaForCausalLM model(tiny_llama());
  {
    c10::InferenceMode inference;
    model(random_ids());
  }
  EXPECT_NO_THROW(model(random_ids(), random_ids()).backward());
}

// Moving all tokens by the same distance changes nothing.
TEST(Llama, AttentionDependsOnTheDistanceOnly) {
  LlamaAttention attention(tiny_llama());
  RotaryEmbedding rotary(attention->head_dim, 10000.0);
  const auto x = torch::randn({2, 5, 16}), here = attention(x, rotary.tables(5, x));
  const auto all = rotary.tables(12, x);
  const RotaryTables moved{all.cos.narrow(0, 7, 5), all.sin.narrow(0, 7, 5)};
  const RotaryTables unturned{torch::ones({5, 4}), torch::zeros({5, 4})};
  EXPECT_TRUE(torch::allclose(attention(x, moved), here, 1e-4, 1e-6));
  EXPECT_FALSE(torch::allclose(attention(x, unturned), here, 1e-3, 1e-5));
}

// The formulas, written out with the module's own weights.
TEST(Llama, LayersComputeTheirFormulas) {
  auto config = tiny_llama();
  config.rms_norm_eps = 0.5;
  config.rope_theta = 100.0;
  const auto x = torch::randn({2, 3, 16});

  LlamaRMSNorm norm(config);
  torch::nn::init::normal_(norm->weight);
  const auto root = torch::sqrt(x.pow(2).mean(-1, true) + 0.5);
  EXPECT_TRUE(torch::allclose(norm(x), x / root * norm->weight, 1e-5, 1e-6));

  LlamaMLP mlp(config);
  const auto gate = mlp->gate_proj(x);
  EXPECT_TRUE(
      torch::allclose(mlp(x), mlp->down_proj(gate * torch::sigmoid(gate) * mlp->up_proj(x)), 1e-5, 1e-6));

  LlamaModel model(config);
  EXPECT_TRUE(model->rotary.tables(3, x).sin.equal(RotaryEmbedding(4, 100.0).tables(3, x).sin));
}

TEST(GPT2, LayersComputeTheirFormulas) {
  auto config = tiny_gpt2();
  config.layer_norm_epsilon = 0.5;
  const auto x = torch::randn({2, 3, 8});

  Conv1D conv(8, 5, 1.0);
  torch::nn::init::normal_(conv->bias);
  EXPECT_TRUE(torch::allclose(conv(x), x.matmul(conv->weight) + conv->bias, 1e-5, 1e-6));

  GPT2MLP mlp(config);
  torch::nn::init::normal_(mlp->c_fc->weight);  // inputs of gelu around 1, where its two forms differ most
  torch::nn::init::normal_(mlp->c_proj->weight);
  const auto z = mlp->c_fc(x);
  const auto gelu = 0.5 * z * (1 + torch::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z.pow(3))));
  EXPECT_TRUE(torch::allclose(mlp(x), mlp->c_proj(gelu), 1e-5, 1e-5));

  GPT2Block block(config);
  EXPECT_EQ(block->ln_1->options.eps(), 0.5);
  EXPECT_EQ(block->ln_2->options.eps(), 0.5);
}

// Grouped-query attention is attention whose key and value heads are repeated for each query of their group.
TEST(Llama, GroupedQueriesAreRepeatedKeyValueHeads) {
  auto config = tiny_llama();
  LlamaForCausalLM grouped(config);
  config.num_key_value_heads = 4;
  LlamaForCausalLM repeated(config);
  torch::NoGradGuard no_grad;
  const auto from = grouped->named_parameters();
  for (auto& item : repeated->named_parameters()) {
    auto value = from[item.key()];
    if (value.sizes() != item.value().sizes()) {
      value = value.view({2, 4, 16}).repeat_interleave(2, 0).view({16, 16});  // [kv_heads, head_dim, dim]
    }
    item.value().copy_(value);
  }
  const auto ids = random_ids();
  EXPECT_TRUE(
      torch::allclose(grouped(ids), repeated(ids), 1e-5, 1e-6));  // other matrix shapes, other rounding
}

TEST(GPT2, LossIsTheMeanCrossEntropyOfTheNextToken) {
  GPT2LMHeadModel model(tiny_gpt2());
  const auto ids = random_ids();
  auto targets = random_ids();
  targets[0][0] = -100;
  const auto log_probabilities = model(ids).log_softmax(-1);
  double sum = 0;
  for (int64_t i = 1; i < 20; ++i) {
    sum -= log_probabilities[i / 10][i % 10][targets[i / 10][i % 10]].item<double>();
  }
  EXPECT_NEAR(model(ids, targets).item<double>(), sum / 19, 1e-5);
}

TEST(GPT2, DropsOutInTrainingOnly) {
  auto config = tiny_gpt2();
  config.dropout = 0.5;
  GPT2LMHeadModel model(config);
  const auto ids = random_ids();
  EXPECT_FALSE(model(ids).equal(model(ids)));
  model->eval();
  EXPECT_TRUE(model(ids).equal(model(ids)));
}

TEST(Llama, ComputesInBFloat16) {
  LlamaForCausalLM model(tiny_llama());
  model->to(torch::kBFloat16);
  const auto ids = random_ids();
  EXPECT_EQ(model(ids).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(model(ids, ids).scalar_type(), torch::kFloat) << "the loss is fp32";
}

// What AnyModule needs: one forward, its default argument declared.
TEST(Llama, GoesIntoAnAnyModule) {
  LlamaForCausalLM model(tiny_llama());
  torch::nn::AnyModule any(model);
  const auto ids = random_ids();
  EXPECT_TRUE(any.forward(ids).equal(model(ids)));
  EXPECT_TRUE(any.forward(ids, ids).equal(model(ids, ids)));
}

// A model with a fixed batch: what it is made of, and its loss.
struct Case {
  std::string name;
  std::vector<torch::Tensor> parameters;
  std::function<torch::Tensor()> loss;
};

template <class M>
Case language_case(const std::string& name, M model) {
  const auto ids = random_ids(4), targets = random_ids(4);
  return {name, model->parameters(), [=]() mutable { return model(ids, targets); }};
}

template <class M>
Case classifier_case(const std::string& name, M model, const torch::Tensor& x) {
  const auto targets = torch::arange(x.size(0)) % 3;
  return {name, model->parameters(), [=]() mutable { return torch::cross_entropy_loss(model(x), targets); }};
}

std::vector<Case> every_model(int64_t seed) {
  torch::manual_seed(seed);
  auto untied = tiny_gpt2();
  untied.tie_word_embeddings = false;
  auto tied = tiny_llama();
  tied.tie_word_embeddings = true;
  return {
      language_case("GPT-2", GPT2LMHeadModel(tiny_gpt2())),
      language_case("GPT-2, untied", GPT2LMHeadModel(untied)),
      language_case("Llama", LlamaForCausalLM(tiny_llama())),
      language_case("Llama, tied", LlamaForCausalLM(tied)),
      classifier_case("MLP", MLP(std::vector<int64_t>{4, 16, 3}, Activation::gelu), torch::randn({8, 4})),
      classifier_case("MLP, tanh", MLP(std::vector<int64_t>{4, 16, 3}, Activation::tanh),
                      torch::randn({8, 4})),
      classifier_case("ConvNet", ConvNet(ConvNetConfig{.num_classes = 3, .width = 4}),
                      torch::randn({8, 3, 8, 8})),
  };
}

TEST(EveryModel, LearnsAFixedBatch) {
  for (auto& [name, parameters, loss] : every_model(2)) {
    SCOPED_TRACE(name);
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-2));
    const double first = loss().item<double>();
    for (int step = 0; step < 30; ++step) {
      optimizer.zero_grad();
      loss().backward();
      optimizer.step();
    }
    EXPECT_LT(loss().item<double>(), 0.7 * first);
  }
}

TEST(EveryModel, GivesEachParameterAGradient) {
  for (auto& [name, parameters, loss] : every_model(3)) {
    loss().backward();
    for (const auto& parameter : parameters) {
      ASSERT_TRUE(parameter.grad().defined()) << name;
      EXPECT_GT(parameter.grad().abs().max().item<float>(), 0) << name;
    }
  }
}

TEST(EveryModel, IsTheSameForTheSameSeed) {
  const auto a = every_model(4), b = every_model(4), other = every_model(5);
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(a[i].name);
    for (size_t p = 0; p < a[i].parameters.size(); ++p)
      EXPECT_TRUE(a[i].parameters[p].equal(b[i].parameters[p]));
    EXPECT_FALSE(a[i].parameters[0].equal(other[i].parameters[0]));
    EXPECT_TRUE(a[i].loss().equal(b[i].loss()));
  }
}

}  // namespace
}  // namespace fsdp::testing
