// Promise: a generated text is the one that reading the whole context anew for each token would give, on any
// number of ranks.
#include "trainer/generate.h"

#include <fsdp/train.h>
#include <gmock/gmock.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "support/ranks.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

using train::LanguageModel;
using train::ModelSpec;
using train::TextOptions;
using Tokens = std::vector<int64_t>;

constexpr int64_t kVocabSize = 50, kWindow = 12;
const Tokens kPrompt{7, 1, 30, 7};

ModelSpec spec_of(const std::string& type) {
  return {.type = type,
          .vocab_size = kVocabSize,
          .context_length = kWindow,
          .hidden_size = 32,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = type == "llama" ? 2 : 0,
          .tie_embeddings = false};  // a tied model would say its last token again
}

// Larger weights than a new model's, so that its most likely token depends on all of the text.
LanguageModel make_model(const World& world, const ModelSpec& spec) {
  LanguageModel model = train::make_language_model(world, spec, {.seed = 3}, {});
  const torch::NoGradGuard no_grad;
  for (at::Tensor& one : model.model.parameters()) one.mul_(12);
  return model;
}

LanguageModel make_model(const World& world, const std::string& type) {
  return make_model(world, spec_of(type));
}

Tokens generate(LanguageModel model, const Tokens& prompt, const TextOptions& options) {
  Tokens text;
  train::generate_text(model, prompt, options, [&](int64_t token) { text.push_back(token); });
  return text;
}

TextOptions greedy(int64_t max_tokens) {
  return {.context = kWindow, .max_tokens = max_tokens, .sample = {.temperature = 0}};
}

Tokens newest(const Tokens& tokens, size_t count) {
  return {tokens.end() - static_cast<std::ptrdiff_t>(std::min(tokens.size(), count)), tokens.end()};
}

// The most likely tokens, by a plain call of the model on all it may read.
Tokens most_likely(LanguageModel model, const Tokens& prompt, int64_t count) {
  const torch::NoGradGuard no_grad;
  model.model.eval();
  Tokens window = newest(prompt, kWindow), text;
  while (std::ssize(text) < count) {
    const at::Tensor all = model.logits(torch::tensor(window).unsqueeze(0));
    text.push_back(all.select(1, -1).argmax(-1).item<int64_t>());
    window.push_back(text.back());
    if (window.size() > kWindow) window = newest(window, kWindow / 2);
  }
  return text;
}

class GenerateText : public ::testing::TestWithParam<std::string> {};

TEST_P(GenerateText, EqualsCallsWithoutACache) {
  run_ranks(1, [](World& world) {
    LanguageModel model = make_model(world, GetParam());
    const Tokens expected = most_likely(model, kPrompt, 8);
    require(std::set<int64_t>(expected.begin(), expected.end()).size() > 2, "the text says something");
    require(generate(model, kPrompt, greedy(8)) == expected, "the texts differ");
  });
}

TEST_P(GenerateText, GoesOnWithTheNewerHalfBeyondTheContext) {
  run_ranks(1, [](World& world) {
    LanguageModel model = make_model(world, GetParam());
    const Tokens expected = most_likely(model, kPrompt, 40);
    require(generate(model, kPrompt, greedy(40)) == expected, "the texts differ");
  });
}

TEST_P(GenerateText, ReadsTheEndOfALongPrompt) {
  run_ranks(1, [](World& world) {
    LanguageModel model = make_model(world, GetParam());
    Tokens prompt(100, 5);
    for (size_t i = 100 - kWindow; i < 100; ++i) prompt[i] = static_cast<int64_t>(i) % kVocabSize;
    const Tokens text = generate(model, prompt, greedy(5));
    require(text == generate(model, newest(prompt, kWindow), greedy(5)), "the older tokens were read");
    require(text == most_likely(model, prompt, 5), "the texts differ");
  });
}

TEST_P(GenerateText, IsTheSameOnAllRanks) {
  Tokens one;
  const TextOptions options{.context = kWindow, .max_tokens = 20, .sample = {.top_k = 20, .seed = 9}};
  for (const int ranks : {1, 2, 3}) {
    std::mutex mutex;
    run_ranks(ranks, [&](World& world) {
      LanguageModel model = make_model(world, GetParam());
      const Tokens text = generate(model, kPrompt, options);
      const std::lock_guard lock(mutex);
      if (one.empty()) one = text;
      require(text == one, "rank " + std::to_string(world.rank()) + " got another text");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GenerateText, ::testing::Values("gpt2", "llama"),
                         [](const auto& info) { return info.param; });

TEST(GenerateTextOptions, TheSeedChoosesTheText) {
  run_ranks(1, [](World& world) {
    LanguageModel model = make_model(world, "llama");
    TextOptions options{.context = kWindow, .max_tokens = 10, .sample = {.seed = 1}};
    const Tokens first = generate(model, kPrompt, options);
    require(generate(model, kPrompt, options) == first, "the same seed gave another text");
    options.sample.seed = 2;
    require(generate(model, kPrompt, options) != first, "another seed gave the same text");
  });
}

TEST(GenerateTextOptions, EndOfTextEndsItAndIsNoPartOfIt) {
  run_ranks(1, [](World& world) {
    LanguageModel model = make_model(world, "gpt2");
    const Tokens all = most_likely(model, kPrompt, 8);
    TextOptions options = greedy(8);
    options.end_of_text = all[3];
    const auto end = std::find(all.begin(), all.end(), all[3]);
    require(generate(model, kPrompt, options) == Tokens(all.begin(), end), "the text goes on");
  });
}

TEST(GenerateTextOptions, TokensWithoutATextAreNotDrawn) {
  run_ranks(1, [](World& world) {
    LanguageModel model = make_model(world, "gpt2");
    const Tokens text =
        generate(model, kPrompt,
                 {.context = kWindow, .max_tokens = 60, .vocab_size = 5, .sample = {.temperature = 9}});
    for (const int64_t token : text) require(token < 5, "token " + std::to_string(token));
  });
}

TEST(GenerateTextOptions, LogitsThatAreNotFiniteAreAnError) {
  run_ranks(1, [](World& world) {
    LanguageModel model = make_model(world, "gpt2");
    {
      const torch::NoGradGuard no_grad;
      model.model.parameters().front().fill_(NAN);
    }
    try {
      generate(model, kPrompt, greedy(1));
    } catch (const NumericError&) {
      return;
    }
    require(false, "no error");
  });
}

// A bag of words: the sum of the tokens' rows.
std::string save_script(const TempFolder& folder) {
  torch::jit::Module script("Bag");
  torch::manual_seed(4);
  script.register_parameter("rows", torch::randn({kVocabSize, kVocabSize}), false);
  script.define("def forward(self, ids):\n  return torch.cumsum(torch.embedding(self.rows, ids), 1)\n");
  script.save(folder / "bag.pt");
  return folder / "bag.pt";
}

TEST(GenerateTextOptions, AScriptReadsAllOfTheText) {
  const TempFolder folder;
  const std::string path = save_script(folder);
  run_ranks(1, [&](World& world) {
    LanguageModel model = make_model(world, ModelSpec{.type = "script", .script = path});
    require(generate(model, kPrompt, greedy(40)) == most_likely(model, kPrompt, 40), "the texts differ");
  });
}

}  // namespace
}  // namespace fsdp::testing
