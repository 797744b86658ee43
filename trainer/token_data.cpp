#include "trainer/token_data.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "trainer/data/documentation.h"
#include "trainer/data/error.h"
#include "trainer/data/synthetic.h"
#include "trainer/data/texts.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_range.h"
#include "trainer/watch/text.h"

namespace fsdp::train {

namespace {

using config::Settings;
using Sources = std::vector<std::shared_ptr<const data::TokenSource>>;

constexpr int64_t kSyntheticTokens = 1 << 20;

// Tokens for training and validation.
struct Streams {
  Sources train = {}, validation = {};
};

data::TokenType token_type(const Settings& settings) {
  const std::string name = settings.text("data.token_type");
  if (name == "uint16") return data::TokenType::uint16;
  if (name == "uint32") return data::TokenType::uint32;
  return data::TokenType::from_header;
}

Sources open_token_files(const std::vector<std::string>& paths, data::TokenType type, int64_t vocab_size) {
  Sources files;
  for (const std::string& path : data::expand_paths(paths, {".bin"}))
    files.push_back(data::TokenFile::open(path, type, vocab_size));
  return files;
}

// Without files for validation, the end of every file is kept for it.
Streams token_streams(const Settings& settings, int64_t vocab_size) {
  const data::TokenType type = token_type(settings);
  Sources files = open_token_files(settings.list("data.train"), type, vocab_size);
  if (settings.has("data.validation"))
    return {.train = std::move(files),
            .validation = open_token_files(settings.list("data.validation"), type, vocab_size)};
  Streams streams;
  for (const auto& file : files) {
    const auto kept =
        static_cast<int64_t>(settings.number("data.validation_fraction") * static_cast<double>(file->size()));
    const int64_t rest = file->size() - kept;
    streams.train.push_back(std::make_shared<data::TokenRange>(file, 0, rest));
    if (kept > 0) streams.validation.push_back(std::make_shared<data::TokenRange>(file, rest, kept));
  }
  return streams;
}

Streams synthetic_streams(const Settings& settings, int64_t vocab_size) {
  const auto make = [&](int64_t count, uint64_t part) {
    // One chain: validation is its continuation, so that what is learned holds there too.
    auto tokens = std::make_shared<data::MemoryTokens>();
    const auto all =
        data::synthetic_tokens(kSyntheticTokens + kSyntheticTokens / 16, static_cast<int32_t>(vocab_size),
                               static_cast<uint64_t>(settings.integer("training.seed")));
    const size_t begin = part == 0 ? 0 : kSyntheticTokens;
    tokens->add(std::span(all).subspan(begin, static_cast<size_t>(count)), true);
    return tokens;
  };
  return {.train = {make(kSyntheticTokens, 0)}, .validation = {make(kSyntheticTokens / 16, 1)}};
}

void check_vocabulary(const data::Tokenizer& tokenizer, int64_t vocab_size) {
  if (vocab_size > 0 && tokenizer.vocab_size() > vocab_size)
    throw data::DataError("data.tokenizer: " + tokenizer.name() + " has " +
                          std::to_string(tokenizer.vocab_size()) + " tokens, the model's vocabulary " +
                          std::to_string(vocab_size) + ": give the model a vocab_size of at least as many");
}

Streams text_streams(const Settings& settings, const std::string& format, int64_t vocab_size) {
  const auto tokenizer = open_settings_tokenizer(settings);
  check_vocabulary(*tokenizer, vocab_size);
  const auto train = std::make_shared<data::MemoryTokens>();
  const auto validation = std::make_shared<data::MemoryTokens>();
  const bool own_validation = settings.has("data.validation");
  const data::TextOptions options{
      .validation_fraction = own_validation ? 0 : settings.number("data.validation_fraction"),
      .jsonl = format == "jsonl",
      .completion_only = settings.flag("data.completion_only")};
  data::TokenSink* part = options.validation_fraction > 0 ? validation.get() : nullptr;
  if (format == "docs")
    data::encode_text(data::documentation_text(), "the documentation", *tokenizer, options, *train, part);
  else
    data::encode_files(data::expand_paths(settings.list("data.train")), *tokenizer, options, *train, part);
  if (own_validation)
    data::encode_files(data::expand_paths(settings.list("data.validation")), *tokenizer,
                       {.jsonl = options.jsonl, .completion_only = options.completion_only}, *validation,
                       nullptr);
  Streams streams{.train = {train}};
  if (validation->size() > 0) streams.validation = {validation};
  return streams;
}

// `auto`: by the ending of the first path; without a path, the documentation.
std::string format_of(const Settings& settings) {
  const std::string format = settings.text("data.format");
  if (format != "auto") return format;
  if (!settings.has("data.train")) return "docs";
  const std::vector<std::string> paths = settings.list("data.train");
  return !paths.empty() && std::filesystem::path(paths.front()).extension() == ".bin" ? "tokens" : "text";
}

Microbatch to_tensors(data::Batch&& batch, c10::Device device) {
  const auto tensor = [&](std::vector<int64_t>&& values) {
    auto* kept = new std::vector<int64_t>(std::move(values));
    return at::from_blob(
               kept->data(), {batch.rows, batch.length}, [kept](void*) { delete kept; }, at::kLong)
        .to(device);
  };
  const int64_t counted = batch.counted;
  return {.inputs = tensor(std::move(batch.tokens)),
          .targets = tensor(std::move(batch.targets)),
          .counted = counted};
}

data::Share share_of(const World& world, const BatchNumbers& numbers) {
  return {.rank = static_cast<uint64_t>(world.rank()),
          .ranks = static_cast<uint64_t>(world.size()),
          .batch_size = static_cast<uint64_t>(numbers.batch_size)};
}

std::shared_ptr<const data::Dataset> make_dataset(const char* key, Sources sources, int64_t length) {
  try {
    return std::make_shared<data::Dataset>(std::move(sources), length);
  } catch (const data::DataError& error) {
    throw data::DataError(std::string(key) + ": " + error.what());
  }
}

}  // namespace

std::unique_ptr<data::Tokenizer> open_settings_tokenizer(const Settings& settings) {
  return data::open_tokenizer(settings.text("data.tokenizer"));
}

std::unique_ptr<data::Tokenizer> open_known_tokenizer(const Settings& settings, int64_t vocab_size) {
  constexpr int64_t kMostOfBytes = 512;  // vocabularies of bytes may be padded; those of words are larger
  const std::string format = format_of(settings);
  const bool unnamed = settings.text("data.tokenizer") == "byte" && vocab_size > kMostOfBytes;
  if (format == "synthetic" || (format == "tokens" && unnamed)) return nullptr;
  return open_settings_tokenizer(settings);
}

Corpus open_corpus(const Settings& settings, int64_t vocab_size, int64_t length) {
  const std::string format = format_of(settings);
  Streams streams = format == "tokens"      ? token_streams(settings, vocab_size)
                    : format == "synthetic" ? synthetic_streams(settings, vocab_size)
                                            : text_streams(settings, format, vocab_size);
  Corpus corpus;
  int64_t kept = 0;
  for (const auto& source : streams.validation) kept += source->size();
  corpus.train = make_dataset("data.train", std::move(streams.train), length);
  // A tail of the training data that is too short for one sequence is no error: there is no evaluation then.
  if (kept > length || (kept > 0 && settings.has("data.validation")))
    corpus.validation = make_dataset("data.validation", std::move(streams.validation), length);
  corpus.description = format + ", " + watch::grouped(corpus.train->tokens()) + " tokens";
  return corpus;
}

TokenData::TokenData(const World& world, std::shared_ptr<const data::Dataset> dataset,
                     const BatchNumbers& numbers, uint64_t seed, bool shuffle, size_t read_ahead)
    : dataset_(std::move(dataset)),
      order_(dataset_->samples(), static_cast<uint64_t>(numbers.global_batch_size), seed, shuffle),
      share_(share_of(world, numbers)),
      device_(world.device()) {
  share_.check(order_.global_batch());
  if (read_ahead > 0) reader_.emplace(dataset_, order_, share_, 0, read_ahead);
}

std::vector<Microbatch> TokenData::batch(int64_t step) {
  std::vector<Microbatch> batches;
  const auto number = static_cast<uint64_t>(step);
  for (data::Batch& one :
       reader_ ? reader_->read(number) : data::read_step(*dataset_, order_, share_, number))
    batches.push_back(to_tensors(std::move(one), device_));
  return batches;
}

int64_t TokenData::steps_per_epoch() const { return static_cast<int64_t>(order_.steps_per_epoch()); }

}  // namespace fsdp::train
