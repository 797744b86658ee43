#include "trainer/data/hf_tokenizer.h"

#include <filesystem>

#include "trainer/data/error.h"
#include "trainer/data/hf_vocabulary.h"
#include "trainer/data/mapped_file.h"

namespace fsdp::data {

namespace {

namespace fs = std::filesystem;

void check_model(const JsonValue& model) {
  const JsonValue type = model.get("type");
  if (!type.is_null() && type.text() != "BPE")
    type.refuse("the model '" + type.text() + "' is not supported; byte-level BPE is");
  const JsonValue dropout = model.get("dropout");
  if (!dropout.is_null() && dropout.json() != Json(0.0))
    dropout.refuse("merges that are dropped at random are not supported; null is expected");
  if (model.flag("byte_fallback", false))
    model.refuse("byte_fallback is not supported: this is a SentencePiece vocabulary, not byte-level BPE");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const JsonValue value = model.get(affix); !value.is_null() && !value.text().empty())
      value.refuse("'" + value.text() + "' is not supported; null or an empty string is expected");
}

void check_normalizer(const JsonValue& normalizer) {
  if (normalizer.is_null()) return;
  const std::string type = normalizer.at("type").text();
  if (type == "Sequence" && normalizer.at("normalizers").array().empty()) return;
  normalizer.refuse("the normalizer '" + type + "' is not supported: it changes the text; null is expected");
}

// A merge is "left right" or ["left", "right"].
void add_merge(const JsonValue& merge, HfVocabulary& vocabulary) {
  if (merge.json().is_array()) {
    if (merge.json().size() != 2) merge.refuse("two tokens are expected");
    return vocabulary.add_merge(JsonValue(merge.json()[0], merge.where()).text(),
                                JsonValue(merge.json()[1], merge.where()).text(), merge.where());
  }
  const std::string text = merge.text();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    merge.refuse("two tokens with a space between them are expected, found '" + text + "'");
  vocabulary.add_merge(text.substr(0, space), text.substr(space + 1), merge.where());
}

AddedToken read_added(const JsonValue& token) {
  for (const char* way : {"single_word", "lstrip", "rstrip"})
    if (token.flag(way, false))
      token.refuse(std::string(way) + " of the added token '" + token.at("content").text() +
                   "' is not supported");
  return {.text = token.at("content").text(),
          .token = token.at("id").token(),
          .special = token.flag("special", false),
          .round = token.flag("normalized", true) ? 1 : 0};
}

// The text of eos_token in the tokenizer_config.json beside a tokenizer; empty: none.
std::string configured_end(const std::string& tokenizer_path) {
  const fs::path path = fs::path(tokenizer_path).replace_filename("tokenizer_config.json");
  if (!file_exists(path.string())) return "";
  const Json json = read_json(path.string());
  const JsonValue end = JsonValue(json, path.string()).get("eos_token");
  if (end.is_null()) return "";
  return end.json().is_object() ? end.at("content").text() : end.text();
}

std::optional<int32_t> end_of_text(const BpeVocabulary& vocabulary, const std::string& configured) {
  for (const std::string& name :
       {configured, std::string("<|endoftext|>"), std::string("<|end_of_text|>"), std::string("</s>")})
    for (const AddedToken& one : vocabulary.added)
      if (one.text == name) return one.token;
  return std::nullopt;
}

void add_merge_lines(const std::string& path, HfVocabulary& vocabulary) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line(text.substr(at, end - at));
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with("#version")) continue;
    const Json merge(line);
    if (find_invalid_utf8(line) != std::string_view::npos)
      throw DataError(path + ":" + std::to_string(number) + ": the line is not UTF-8");
    add_merge({merge, path + ":" + std::to_string(number)}, vocabulary);
  }
}

}  // namespace

std::unique_ptr<Tokenizer> open_hf_tokenizer(const std::string& path) {
  const Json json = read_json(path);
  const JsonValue file(json, path), model = file.at("model");
  check_model(model);
  check_normalizer(file.get("normalizer"));
  HfVocabulary tokens(model.at("vocab"));
  const JsonValue merges = model.at("merges"), added = file.get("added_tokens");
  for (size_t i = 0; i < merges.array().size(); ++i)
    add_merge({merges.json()[i], merges.where() + "[" + std::to_string(i) + "]"}, tokens);
  for (size_t i = 0; !added.is_null() && i < added.array().size(); ++i) {
    const JsonValue one(added.json()[i], added.where() + "[" + std::to_string(i) + "]");
    tokens.add_token(read_added(one), one.where());
  }
  BpeVocabulary vocabulary = std::move(tokens).take();
  vocabulary.name = "BPE (" + path + ")";
  vocabulary.whole_pieces = model.flag("ignore_merges", false);
  vocabulary.steps = read_pre_tokenizer(file.get("pre_tokenizer"));
  vocabulary.end_of_text = end_of_text(vocabulary, configured_end(path));
  return std::make_unique<BpeTokenizer>(std::move(vocabulary), path);
}

std::unique_ptr<Tokenizer> open_gpt2_tokenizer(const std::string& vocab_path,
                                               const std::string& merges_path) {
  const Json json = read_json(vocab_path);
  HfVocabulary tokens(JsonValue(json, vocab_path));
  add_merge_lines(merges_path, tokens);
  if (const int32_t* end = tokens.find("<|endoftext|>"))
    tokens.add_token({.text = "<|endoftext|>", .token = *end}, vocab_path);
  BpeVocabulary vocabulary = std::move(tokens).take();
  vocabulary.name = "GPT-2 (" + vocab_path + ")";
  vocabulary.steps = {gpt2_step()};
  vocabulary.end_of_text = end_of_text(vocabulary, "");
  return std::make_unique<BpeTokenizer>(std::move(vocabulary), vocab_path);
}

}  // namespace fsdp::data
