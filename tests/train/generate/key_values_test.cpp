// Promise: with cached keys and values, GPT-2 and Llama give the logits that they give without.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <vector>

#include "models/gpt2.h"
#include "models/llama.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using models::GPT2LMHeadModel;
using models::KeyValues;
using models::LlamaForCausalLM;

constexpr int64_t kVocab = 61, kContext = 16;

GPT2LMHeadModel make_gpt2(double dropout = 0) {
  torch::manual_seed(3);
  return GPT2LMHeadModel(models::GPT2Config{.vocab_size = kVocab,
                                            .n_positions = kContext,
                                            .n_embd = 24,
                                            .n_layer = 3,
                                            .n_head = 4,
                                            .dropout = dropout});
}

LlamaForCausalLM make_llama(int64_t kv_heads) {
  torch::manual_seed(3);
  return LlamaForCausalLM(models::LlamaConfig{.vocab_size = kVocab,
                                              .hidden_size = 32,
                                              .intermediate_size = 48,
                                              .num_hidden_layers = 3,
                                              .num_attention_heads = 4,
                                              .num_key_value_heads = kv_heads,
                                              .max_position_embeddings = kContext,
                                              .initializer_range = 0.2});
}

at::Tensor some_tokens(int64_t batch = 2) {
  torch::manual_seed(5);
  return torch::randint(kVocab, {batch, kContext}, torch::kLong);
}

// Lengths of the pieces in which a text is read: the prompt, then one or more tokens at a time.
using Pieces = std::vector<int64_t>;

std::vector<Pieces> ways_to_read() {
  return {Pieces(kContext, 1), {7, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 15}, {5, 3, 4, 1, 3}, {kContext}};
}

// The largest difference, relative to the largest logit, between `next` piece by piece and `all` [batch,
// time, vocab].
template <class Next>
double difference(const at::Tensor& tokens, const at::Tensor& all, const Pieces& pieces, Next next) {
  KeyValues read(kContext);
  double worst = 0;
  for (const int64_t length : pieces) {
    const at::Tensor logits = next(tokens.narrow(1, read.length(), length), read);
    worst = std::max(worst, (logits - all.select(1, read.length() - 1)).abs().max().template item<double>());
  }
  return worst / all.abs().max().item<double>();
}

// The product of a single row adds up in another order than that of many rows.
constexpr double kRounding = 1e-5;

template <class Net>
void expect_same_logits(Net net) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const at::Tensor tokens = some_tokens();
  const at::Tensor all = net(tokens);
  for (const Pieces& pieces : ways_to_read()) {
    const auto next = [&](const at::Tensor& ids, KeyValues& read) { return net->next_logits(ids, read); };
    EXPECT_LE(difference(tokens, all, pieces, next), kRounding) << ::testing::PrintToString(pieces);
  }
}

TEST(KeyValues, GPT2GivesTheLogitsOfItsForward) { expect_same_logits(make_gpt2()); }

TEST(KeyValues, GPT2HasNoDropoutInEvaluationMode) { expect_same_logits(make_gpt2(/*dropout=*/0.5)); }

TEST(KeyValues, LlamaGivesTheLogitsOfItsForward) { expect_same_logits(make_llama(4)); }

TEST(KeyValues, LlamaSharesKeysAmongGroupsOfQueries) {
  expect_same_logits(make_llama(2));
  expect_same_logits(make_llama(1));
}

TEST(KeyValues, ClearForgetsTheTextBefore) {
  const torch::NoGradGuard no_grad;
  auto net = make_llama(2);
  const at::Tensor tokens = some_tokens();
  KeyValues read(kContext);
  const at::Tensor first = net->next_logits(tokens.narrow(1, 0, 6), read);
  read.clear();
  net->next_logits(tokens.narrow(1, 6, 10), read);
  read.clear();
  EXPECT_TRUE(net->next_logits(tokens.narrow(1, 0, 6), read).equal(first));
}

TEST(KeyValues, RefusesMoreTokensThanItHasMemoryFor) {
  const torch::NoGradGuard no_grad;
  auto net = make_gpt2();
  KeyValues read(8);
  net->next_logits(some_tokens().narrow(1, 0, 8), read);
  require_words(refusal([&] { net->next_logits(some_tokens().narrow(1, 8, 1), read); }),
                "1 tokens after 8, but the keys and values have memory for 8");
  KeyValues longer(2 * kContext);
  net->next_logits(some_tokens(), longer);
  require_words(refusal([&] { net->next_logits(some_tokens(), longer); }), "n_positions is 16");
}

TEST(KeyValues, RefusesGradientsAndDropout) {
  auto net = make_gpt2(/*dropout=*/0.1);
  KeyValues read(kContext);
  require_words(refusal([&] { net->next_logits(some_tokens(), read); }), "NoGradGuard");
  const torch::NoGradGuard no_grad;
  require_words(refusal([&] { net->next_logits(some_tokens(), read); }), "eval()");
}

template <class Net>
at::Tensor plain_logits(Net net) {
  const torch::NoGradGuard no_grad;
  net->eval();
  return net(some_tokens());
}

// On `ranks` ranks, between two training steps.
template <class Make>
void expect_same_logits_sharded(int ranks, Make make, const ShardOptions& options, double bound) {
  // Ranks are threads, which share one generator: all that is drawn is drawn here.
  const at::Tensor tokens = some_tokens(), all = plain_logits(make());
  std::vector<decltype(make())> nets;
  for (int rank = 0; rank < ranks; ++rank) nets.push_back(make());
  run_ranks(ranks, [&](World& world) {
    auto model = fully_shard(world, nets[static_cast<size_t>(world.rank())], options);
    const auto train = [&] {
      model.train();
      model(tokens, tokens).backward();
      model.zero_grad();
    };
    train();
    {
      const torch::NoGradGuard no_grad;
      model.eval();
      for (const Pieces& pieces : ways_to_read()) {
        const auto next = [&](const at::Tensor& ids, KeyValues& read) {
          return model.run([&](auto& net) { return net.next_logits(ids, read); });
        };
        const double found = difference(tokens, all, pieces, next);
        require(found <= bound, "logits differ by " + std::to_string(found));
        const auto kept = model.keep_gathered();
        require(difference(tokens, all, pieces, next) <= bound, "logits differ while kept gathered");
      }
    }
    train();
  });
}

ShardOptions by_block() { return {.wrap = by_type<models::GPT2BlockImpl, models::LlamaDecoderLayerImpl>()}; }

TEST(KeyValues, WorkSharded) {
  for (const int ranks : {1, 2, 3}) {
    expect_same_logits_sharded(
        ranks, [] { return make_gpt2(); }, by_block(), kRounding);
    expect_same_logits_sharded(
        ranks, [] { return make_llama(2); }, by_block(), kRounding);
  }
}

// bf16 has 8 bits: an error of 2^-9 per operation, of which a block has about ten, grows to a few percent.
TEST(KeyValues, WorkShardedInMixedPrecision) {
  ShardOptions options = by_block();
  options.precision = bf16();
  options.precision.output = at::kFloat;
  expect_same_logits_sharded(
      2, [] { return make_llama(2); }, options, 0.05);
}

}  // namespace
}  // namespace fsdp::testing
