#include "app/config/check_model.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "app/config/check.h"
#include "app/config/near.h"
#include "app/config/value.h"

namespace fsdp::config {

namespace {

constexpr int64_t kByteTokens = 257;  // the byte tokenizer: the bytes and an end of text

class Model {
 public:
  Model(const Settings& settings, Problems& problems) : settings_(settings), problems_(problems) {}

  // Keys of a model config for a model that has none.
  void refuse_sizes() {
    for (const Key* key : keys_below(kModelConfig))
      if (settings_.is_given(key->path))
        problems_.add(
            settings_.origin(key->path).text, key->path,
            "found a size of a model config, but the run's model is not one. Name it by --model-config");
  }

  void heads() {
    const int64_t hidden = *size("hidden_size"), heads = *size("num_heads");
    if (hidden % heads != 0)
      return refuse("num_heads", "found " + std::to_string(heads) + ", expected a divisor of hidden_size " +
                                     std::to_string(hidden));
    if (is_llama() && hidden / heads % 2 != 0)
      refuse("num_heads", "found " + std::to_string(heads) + " heads of " + std::to_string(hidden / heads) +
                              ", expected an even size: rotary embeddings turn pairs");
    const auto groups = size("num_kv_heads");
    if (groups && heads % *groups != 0)
      refuse("num_kv_heads", "found " + std::to_string(*groups) + ", expected a divisor of num_heads " +
                                 std::to_string(heads));
    else if (groups && !is_llama() && *groups != heads)
      refuse("num_kv_heads", "found " + std::to_string(*groups) +
                                 ", but a gpt2 model has as many as num_heads. Remove it, or use llama");
  }

  void family() {
    const auto inner = size("intermediate_size");
    if (inner && !is_llama() && *inner != 4 * *size("hidden_size"))
      refuse("intermediate_size", "found " + std::to_string(*inner) + ", expected " +
                                      std::to_string(4 * *size("hidden_size")) +
                                      ": a gpt2 model has 4 x hidden_size. Remove it, or use llama");
    if (is_llama() && settings_.peek("model_config.dropout").get<double>() > 0)
      refuse("dropout", "found " + shown(settings_.peek("model_config.dropout")) +
                            ", but a llama model has none. Remove it, or use gpt2");
  }

  // Names of layers as models/lora.h has them.
  void adapters() {
    if (settings_.integer("lora.rank") == 0 || !settings_.has("lora.targets")) return;
    const std::vector<std::string> known =
        is_llama() ? std::vector<std::string>{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                              "gate_proj", "up_proj", "down_proj"}
                   : std::vector<std::string>{"c_attn",      "c_proj",     "c_fc",    "attn.c_attn",
                                              "attn.c_proj", "mlp.c_proj", "mlp.c_fc"};
    for (const std::string& target : settings_.list("lora.targets"))
      if (std::find(known.begin(), known.end(), target) == known.end())
        problems_.add(settings_.origin("lora.targets").text, "lora.targets",
                      "found '" + target + "', expected layers of a " + (is_llama() ? "llama" : "gpt2") +
                          " model: " + one_of(known) + did_you_mean(target, known));
  }

  void tokens() {
    const int64_t vocabulary = *size("vocab_size"), context = *size("context_length");
    const Json& format = settings_.peek("data.format");
    const bool has_text = format != "tokens" && format != "synthetic" && format != "auto";
    if (has_text && settings_.peek("data.tokenizer") == "byte" && vocabulary < kByteTokens)
      refuse("vocab_size", "found " + std::to_string(vocabulary) + ", expected at least " +
                               std::to_string(kByteTokens) + ", the tokens of " +
                               described(settings_, "data.tokenizer"));
    const Json& length = settings_.peek("data.sequence_length");
    if (!length.is_number() || length.get<int64_t>() <= context) return;
    const Blame at = blame(settings_, {"data.sequence_length", "model_config.context_length"});
    problems_.add(at.where, at.key,
                  "found " + shown(length) + " tokens, expected at most the model's context_length, " +
                      std::to_string(context) + " (" + settings_.origin("model_config.context_length").text +
                      ")");
  }

 private:
  std::optional<int64_t> size(const std::string& name) const {
    const Json& value = settings_.peek(std::string(kModelConfig) + "." + name);
    return value.is_number() ? std::optional(value.get<int64_t>()) : std::nullopt;
  }
  bool is_llama() const { return settings_.peek("model_config.type") == "llama"; }

  void refuse(const std::string& name, const std::string& text) {
    const Blame at = blame(settings_, {std::string(kModelConfig) + "." + name});
    problems_.add(at.where, at.key, text);
  }

  const Settings& settings_;
  Problems& problems_;
};

bool is_complete(const Settings& settings) {
  for (const Key* key : keys_below(kModelConfig))
    if (key->required && settings.peek(key->path).is_null()) return false;
  return true;
}

}  // namespace

void check_model(const Settings& settings, Problems& problems) {
  Model model(settings, problems);
  if (settings.peek("model.config").is_null()) return model.refuse_sizes();
  if (!is_complete(settings)) return;  // a problem of the file, which is known
  model.heads();
  model.family();
  model.tokens();
  model.adapters();
}

}  // namespace fsdp::config
