#include "trainer/data/texts.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "trainer/data/error.h"
#include "trainer/data/jsonl.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/token_file.h"

namespace fsdp::data {

namespace {

constexpr std::string_view kWhiteSpace = " \t\r";

// Encodes the documents of one call. See Note [Documents].
class Encoder {
 public:
  Encoder(Tokenizer& tokenizer, const TextOptions& options, TokenSink& train, TokenSink* validation)
      : tokenizer_(tokenizer), options_(options), train_(train), validation_(validation) {
    const double fraction = options.validation_fraction;
    if (!(fraction >= 0 && fraction < 1))
      throw DataError("a validation fraction of " + std::to_string(fraction) +
                      "; at least 0 and less than 1 is expected");
    if (fraction > 0 && validation == nullptr)
      throw DataError("a validation fraction without a destination for that part");
  }

  void add_text(std::string_view text, const std::string& where, const TextProgress& progress);
  void add_jsonl(std::string_view text, const std::string& path, const TextProgress& progress);
  TextCounts finish(const std::string& what) const;

 private:
  void encode(std::string_view text, bool counted, TokenSink& sink, const TakeTokens& progress = {});
  void end_document(TokenSink& sink);
  TokenSink& next_example();

  Tokenizer& tokenizer_;
  const TextOptions& options_;
  TokenSink& train_;
  TokenSink* validation_;
  TextCounts counts_;
  int64_t examples_ = 0;  // of JSONL, with text
};

void Encoder::encode(std::string_view text, bool counted, TokenSink& sink, const TakeTokens& progress) {
  tokenizer_.encode(text, SpecialTokens::as_text, [&](std::span<const int32_t> tokens, size_t bytes_read) {
    sink.add(tokens, counted);
    if (progress) progress(tokens, bytes_read);
  });
}

void Encoder::end_document(TokenSink& sink) {
  ++(&sink == validation_ ? counts_.validation_documents : counts_.documents);
  if (const std::optional<int32_t> end = tokenizer_.end_of_text()) sink.add(std::span(&*end, 1), true);
}

// Returns the offset at which the last part of a text begins: after a line break, else before a character.
size_t divide(std::string_view text, double validation_fraction) {
  const auto train = static_cast<size_t>(static_cast<double>(text.size()) * (1 - validation_fraction));
  const size_t line = text.find('\n', train);
  if (line != std::string_view::npos && line + 1 < text.size()) return line + 1;
  const size_t before = text.rfind('\n', train);
  if (before != std::string_view::npos && before > 0) return before + 1;
  // At most 3 bytes of a character follow its first; more than these are no UTF-8.
  for (size_t back = 0; back <= std::min<size_t>(3, train); ++back)
    if ((static_cast<unsigned char>(text[train - back]) & 0xC0) != 0x80) return train - back;
  return train;
}

void Encoder::add_text(std::string_view text, const std::string& where, const TextProgress& progress) {
  counts_.bytes += static_cast<int64_t>(text.size());
  if (text.empty()) {
    ++counts_.empty_documents;
    return;
  }
  const size_t train =
      options_.validation_fraction > 0 ? divide(text, options_.validation_fraction) : text.size();
  const auto add = [&](size_t begin, size_t end, TokenSink& sink) {
    if (begin == end) return;
    try {
      encode(text.substr(begin, end - begin), true, sink, [&](std::span<const int32_t>, size_t bytes_read) {
        if (progress) progress(static_cast<int64_t>(begin + bytes_read), static_cast<int64_t>(text.size()));
      });
    } catch (const InvalidUtf8& error) {
      throw DataError(where + ":" + std::to_string(begin + error.offset()) + ": " + error.what() +
                      ". Convert it (iconv -t UTF-8), or use the byte tokenizer");
    }
    end_document(sink);
  };
  add(0, train, train_);
  if (train < text.size()) add(train, text.size(), *validation_);
}

// Validation takes example i where the number of examples it should have by then grows.
TokenSink& Encoder::next_example() {
  const auto due = [&](int64_t examples) {
    return std::floor(static_cast<double>(examples) * options_.validation_fraction + 1e-9);
  };
  const int64_t i = examples_++;
  return due(i + 1) > due(i) ? *validation_ : train_;
}

void Encoder::add_jsonl(std::string_view text, const std::string& path, const TextProgress& progress) {
  counts_.bytes += static_cast<int64_t>(text.size());
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const std::string where = path + ":" + std::to_string(++number);
    at = end + 1;
    if (line.find_first_not_of(kWhiteSpace) == std::string_view::npos) continue;
    const Example example = parse_example(line, where, options_);
    if (example.completion.empty()) {
      ++counts_.empty_documents;
      continue;
    }
    TokenSink& sink = next_example();
    encode(example.prompt, !options_.completion_only, sink);
    encode(example.completion, true, sink);
    end_document(sink);
    if (progress)
      progress(static_cast<int64_t>(std::min(at, text.size())), static_cast<int64_t>(text.size()));
  }
}

TextCounts Encoder::finish(const std::string& what) const {
  if (counts_.documents == 0)
    throw DataError(what + ": no text is there for training (" + std::to_string(counts_.empty_documents) +
                    " empty documents" +
                    (counts_.validation_documents > 0 ? ", the others are for validation)" : ")"));
  if (options_.validation_fraction > 0 && counts_.validation_documents == 0)
    throw DataError(what + ": no text is left for validation with a fraction of " +
                    std::to_string(options_.validation_fraction) +
                    ". Give more data, a larger fraction, or 0 for no validation");
  return counts_;
}

int64_t size_of(const std::string& path) {
  std::error_code code;
  const auto size = std::filesystem::file_size(path, code);
  return code ? 0 : static_cast<int64_t>(size);
}

}  // namespace

TextCounts encode_files(const std::vector<std::string>& files, Tokenizer& tokenizer,
                        const TextOptions& options, TokenSink& train, TokenSink* validation,
                        const TextProgress& progress) {
  if (files.empty()) throw DataError("no files of text were given");
  Encoder encoder(tokenizer, options, train, validation);
  int64_t total = 0, done = 0;
  for (const std::string& path : files) total += size_of(path);
  for (const std::string& path : files) {
    const MappedFile file(path);
    if (is_token_file(file))
      throw DataError(path +
                      ":0: this is a token file of llm.c's, not a text. Nothing has to be prepared: set " +
                      "data.format to tokens");
    const auto within = [&](int64_t bytes, int64_t) {
      if (progress) progress(done + bytes, std::max(total, done + bytes));
    };
    if (options.jsonl || path.ends_with(".jsonl"))
      encoder.add_jsonl(file.text(), path, within);
    else
      encoder.add_text(file.text(), path, within);
    done += static_cast<int64_t>(file.size());
  }
  if (progress) progress(done, done);
  return encoder.finish(files.size() == 1 ? files.front() : std::to_string(files.size()) + " files");
}

TextCounts encode_text(std::string_view text, const std::string& where, Tokenizer& tokenizer,
                       const TextOptions& options, TokenSink& train, TokenSink* validation) {
  Encoder encoder(tokenizer, options, train, validation);
  encoder.add_text(text, where, {});
  return encoder.finish(where);
}

}  // namespace fsdp::data
