// `fsdp generate` in the worker: weights of a run in, texts out.
#include <fsdp/fsdp.h>

#include <cerrno>
#include <cstdio>

#include "trainer/adapters.h"
#include "trainer/data/error.h"
#include "trainer/generate.h"
#include "trainer/generate_words.h"
#include "trainer/run_settings.h"
#include "trainer/token_data.h"

namespace fsdp::train {

namespace {

void note(const std::string& text) { std::fprintf(stderr, "fsdp: %s\n", text.c_str()); }

// At once, so that a reader sees each token as it comes.
void write(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) throw IoError("write to", "stdout", errno);
}

// One copy of the weights, in the dtype that training computed in.
ShardOptions generation_options(const Settings& settings) {
  ShardOptions options;
  options.precision.param = parse_precision(settings.text("training.precision")).param;
  options.precision.master = options.precision.param;
  options.wrap = whole_model();
  return options;
}

// The checkpoint in a run's folder: that of `step`; if `step` is negative, the folder, meaning its latest.
std::string checkpoint_path(const std::string& folder, int64_t step) {
  if (step < 0) return folder;
  const std::string digits = std::to_string(step);
  return folder + "/step-" + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

// Loads the weights, or their average. Returns the folder they came from.
std::string load_weights(const World& world, const LanguageModel& model, const std::string& folder,
                         int64_t step, bool average, const std::optional<WeightSources>& beneath_adapters) {
  // Not strict: of the two sets of weights in a checkpoint, one is not used.
  LoadOptions options{.strict = false, .weights_only = true, .cast = true, .fall_back = step < 0};
  if (average) options.rename = [](const std::string& name) { return "average." + name; };
  if (beneath_adapters) options.filter = models::is_adapter;
  RunState state{.model = model.model};
  const LoadReport report = load(checkpoint_path(folder, step), state, options);
  for (const std::string& damaged : report.damaged) note(damaged);
  std::vector<std::string> wrong = report.mismatched;
  for (const std::string& name : report.missing) wrong.push_back("'" + name + "' is missing");
  if (wrong.empty() && beneath_adapters) {
    const auto base = saved_base(report.path);
    if (!base)
      throw CheckpointError(report.path + " was saved without LoRA, but config.yaml has a lora.rank");
    load_base(world, model.model, *base, *beneath_adapters);
  }
  if (wrong.empty()) return report.path;
  const std::string more = wrong.size() > 1 ? ", and " + std::to_string(wrong.size() - 1) + " more" : "";
  throw CheckpointError(report.path + " does not fit the model of the run's config.yaml: " + wrong.front() +
                        more);
}

// The longest text that training knew. A model that began with other weights may know longer ones.
int64_t context_of(const Settings& settings, const ModelSpec& spec) {
  const bool began_elsewhere = !spec.pretrained.empty() || settings.has("training.init_from");
  const bool by_model = spec.context_length > 0 && (began_elsewhere || !settings.has("data.sequence_length"));
  return by_model ? spec.context_length : settings.integer("data.sequence_length");
}

void check_tokens(const std::vector<int64_t>& prompt, int64_t vocab_size) {
  for (const int64_t token : prompt)
    if (vocab_size > 0 && token >= vocab_size)
      throw data::DataError("--prompt: token " + std::to_string(token) + " is none of the model's " +
                            std::to_string(vocab_size));
}

void announce(const std::string& from, const std::vector<int64_t>& prompt, const TextOptions& options,
              bool average) {
  note("loaded " + std::string(average ? "the averaged weights of " : "") + from);
  if (options.vocab_size == 0)
    note("the tokenizer of this run's data is not known (data.tokenizer): texts are token ids");
  const auto length = static_cast<int64_t>(prompt.size());
  if (length > options.context)
    note("the prompt has " + std::to_string(length) + " tokens, the context " +
         std::to_string(options.context) + ": only the last " + std::to_string(options.context) +
         " are read");
}

}  // namespace

void generate_from_run(const World& world, const Settings& settings, const std::string& folder,
                       const GenerateRequest& request) {
  const ModelSpec spec = model_spec(settings);
  const auto words = make_words(open_known_tokenizer(settings, spec.vocab_size));
  const std::vector<int64_t> prompt = words->encode(request.prompt);
  check_tokens(prompt, spec.vocab_size);
  TextOptions options{.context = context_of(settings, spec),
                      .max_tokens = request.max_tokens,
                      .vocab_size = words->vocab_size(),
                      .end_of_text = words->end_of_text(),
                      .sample = request.sample};
  const WeightSources sources = weight_sources(settings, spec);
  LanguageModel model = make_language_model(world, spec, {.seed = static_cast<uint64_t>(sources.seed)},
                                            generation_options(settings));
  const auto beneath = spec.lora.rank > 0 ? std::optional(sources) : std::nullopt;
  const bool average = request.average && settings.number("training.ema_decay") > 0;
  announce(load_weights(world, model, folder, request.step, average, beneath), prompt, options, average);
  for (int64_t i = 0; i < request.count; ++i, ++options.sample.seed) {
    if (request.count > 1)
      note("text " + std::to_string(i + 1) + " of " + std::to_string(request.count) + ", seed " +
           std::to_string(options.sample.seed));
    generate_text(model, prompt, options, [&](int64_t token) { write(words->next(token)); });
    write(words->finish());
  }
}

}  // namespace fsdp::train
