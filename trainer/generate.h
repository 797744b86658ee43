// Text from a language model, token by token, and the worker of `fsdp generate`.
#pragma once

#include <fsdp/world.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/config/settings.h"
#include "trainer/generate_request.h"
#include "trainer/language_model.h"
#include "trainer/sample.h"

namespace fsdp::train {

// Note [Texts longer than the context]
// A model reads at most `context` tokens. Of a longer prompt it reads the newest ones. When a text outgrows
// the context, the older half of what the model read is dropped, and the newer half is read again: positions
// begin at 0 there, so nothing of the cache can be kept. Every token therefore sees at least half a context,
// and a token costs two on average. (Dropping a single token would read all of the context for each.)
struct TextOptions {
  int64_t context = 1;                      // tokens
  int64_t max_tokens = 1;                   // of the new text
  int64_t vocab_size = 0;                   // only tokens below this are drawn; 0: all
  std::optional<int64_t> end_of_text = {};  // ends the text, and is not part of it
  SampleOptions sample = {};
};

// Draws a text that follows `prompt`, which is not empty, and calls `take` for each token at once. Without
// gradients and in evaluation mode. Collective: every rank gets the same tokens. Throws NumericError if the
// model's logits are not finite.
void generate_text(LanguageModel& model, const std::vector<int64_t>& prompt, const TextOptions& options,
                   const std::function<void(int64_t token)>& take);

// `fsdp generate`: texts of the run in `folder` on stdout, each with a line end, and notes on stderr. `world`
// has one rank. Throws data::DataError for a prompt that cannot be used, and what load() throws.
void generate_from_run(const World& world, const config::Settings& settings, const std::string& folder,
                       const GenerateRequest& request);

}  // namespace fsdp::train
