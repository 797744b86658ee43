#include "app/commands/data.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "app/exit_codes.h"
#include "app/output.h"
#include "trainer/data/error.h"
#include "trainer/data/texts.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_file_writer.h"
#include "trainer/data/tokenizer.h"

namespace fsdp::app {

namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockTokens = size_t{1} << 20;
constexpr int64_t kShownTokens = 64;

struct PrepareArguments {
  std::vector<std::string> files;
  std::string tokenizer = "byte", out, validation_out;
  data::TextOptions options;
  bool whole_loss = false, json = false;
};

struct TokenFileArguments {
  std::string file, type, tokenizer;
  bool json = false;
};

// A token file may be replaced; other files, and those that are read, are not.
void check_output(const std::string& out, const std::vector<std::string>& files) {
  std::error_code code;
  for (const std::string& file : files)
    if (fs::equivalent(file, out, code))
      throw data::DataError(out + ": this file is to be read and written. Name another --out");
  if (fs::is_directory(out, code)) throw data::DataError(out + ": a file is expected, this is a folder");
  if (fs::exists(out, code) && !data::is_token_file(data::MappedFile(out)))
    throw data::DataError(out + ": this file exists and is no token file. Delete it, or name another --out");
}

void check_outputs(const PrepareArguments& given, const std::vector<std::string>& files) {
  if (given.validation_out.empty() && given.options.validation_fraction > 0)
    throw data::DataError("--validation-fraction needs --validation-out, the file that gets this part");
  check_output(given.out, files);
  if (given.validation_out.empty()) return;
  check_output(given.validation_out, files);
  std::error_code code;
  const fs::path out = fs::weakly_canonical(fs::absolute(given.out), code);
  if (!code && out == fs::weakly_canonical(fs::absolute(given.validation_out), code))
    throw data::DataError(given.out + ": --out and --validation-out are the same file");
}

std::string type_name(const data::TokenFileWriter& file) { return file.width() == 2 ? "uint16" : "uint32"; }

Json to_json(const data::TokenFileWriter& file) {
  return {
      {"file", file.path()}, {"type", type_name(file)}, {"tokens", file.size()}, {"counted", file.counted()}};
}

std::string as_text(const data::TokenFileWriter& file) {
  std::string text = file.path() + ": " + counted(file.size(), "token") + " (" + type_name(file) + ")";
  if (file.counted() < file.size())
    text += ", of which " + count_text(file.counted()) + " count in the loss (" + file.path() + ".mask)";
  return printable(text) + "\n";
}

int report(const PrepareArguments& given, const data::Tokenizer& tokenizer, const data::TextCounts& counts,
           const data::TokenFileWriter& train, const data::TokenFileWriter* validation) {
  if (given.json) {
    Json all = {{"train", to_json(train)}};
    if (validation != nullptr) all["validation"] = to_json(*validation);
    all.update({{"tokenizer", tokenizer.name()},
                {"vocab_size", tokenizer.vocab_size()},
                {"documents", counts.documents},
                {"validation_documents", counts.validation_documents},
                {"empty_documents", counts.empty_documents},
                {"bytes", counts.bytes}});
    print(all);
    return kOk;
  }
  const int64_t documents = counts.documents + counts.validation_documents;
  std::string text = counted(documents, "document") + ", " + size_text(counts.bytes) + ", tokenizer " +
                     tokenizer.name() + " of " + count_text(tokenizer.vocab_size()) + " tokens";
  if (counts.empty_documents > 0)
    text += ", " + counted(counts.empty_documents, "empty document") + " skipped";
  print(printable(text) + "\n" + as_text(train) + (validation != nullptr ? as_text(*validation) : ""));
  return kOk;
}

int prepare(const PrepareArguments& given) {
  const std::unique_ptr<data::Tokenizer> tokenizer = data::open_tokenizer(given.tokenizer);
  const std::vector<std::string> files = data::expand_paths(given.files);
  check_outputs(given, files);
  data::TextOptions options = given.options;
  options.completion_only = !given.whole_loss;
  constexpr double kUsualFraction = 0.05;
  if (!given.validation_out.empty() && options.validation_fraction == 0)
    options.validation_fraction = kUsualFraction;
  data::TokenFileWriter train(given.out, tokenizer->vocab_size());
  std::unique_ptr<data::TokenFileWriter> validation;
  if (!given.validation_out.empty())
    validation = std::make_unique<data::TokenFileWriter>(given.validation_out, tokenizer->vocab_size());
  const data::TextCounts counts =
      data::encode_files(files, *tokenizer, options, train, validation.get(), show_progress("encoded"));
  train.sync();
  if (validation) validation->sync();
  train.commit();
  if (validation) validation->commit();
  return report(given, *tokenizer, counts, train, validation.get());
}

struct TokenSummary {
  int64_t largest = -1;
  int64_t counted = 0;
};

// Reads all of the file.
TokenSummary summarize(const data::TokenFile& file) {
  TokenSummary summary;
  const ByteProgress progress = show_progress("read");
  const int64_t width = file.type() == data::TokenType::uint32 ? 4 : 2;
  std::vector<int64_t> tokens;
  std::vector<uint8_t> mask;
  for (int64_t at = 0; at < file.size(); at += static_cast<int64_t>(tokens.size())) {
    tokens.resize(std::min(kBlockTokens, static_cast<size_t>(file.size() - at)));
    mask.resize(tokens.size());
    file.read(at, tokens);
    file.read_mask(at, mask);
    summary.largest = std::max(summary.largest, *std::max_element(tokens.begin(), tokens.end()));
    summary.counted += std::count(mask.begin(), mask.end(), 1);
    if (progress) progress((at + std::ssize(tokens)) * width, file.size() * width);
  }
  return summary;
}

std::string first_text(const data::TokenFile& file, const data::Tokenizer& tokenizer) {
  std::vector<int64_t> read(static_cast<size_t>(std::min(kShownTokens, file.size())));
  file.read(0, read);
  return data::replace_invalid_utf8(tokenizer.decode(std::vector<int32_t>(read.begin(), read.end())));
}

data::TokenType type_of(const std::string& name) {
  return name == "uint16"   ? data::TokenType::uint16
         : name == "uint32" ? data::TokenType::uint32
                            : data::TokenType::from_header;
}

int inspect(const TokenFileArguments& given) {
  const std::unique_ptr<data::Tokenizer> tokenizer =
      given.tokenizer.empty() ? nullptr : data::open_tokenizer(given.tokenizer);
  const auto file =
      data::TokenFile::open(given.file, type_of(given.type), tokenizer ? tokenizer->vocab_size() : 0);
  const std::string format =
      data::is_token_file(data::MappedFile(given.file)) ? "llm.c" : "tokens without a header, as of nanoGPT";
  const TokenSummary summary = summarize(*file);
  const std::string text = tokenizer ? first_text(*file, *tokenizer) : "";
  if (given.json) {
    Json all = {{"file", given.file},
                {"format", format},
                {"type", data::to_string(file->type())},
                {"tokens", file->size()},
                {"largest_token", summary.largest},
                {"counted", summary.counted}};
    if (tokenizer) all.update({{"tokenizer", tokenizer->name()}, {"text", text}});
    print(all);
    return kOk;
  }
  Table table;
  table.add({"file", given.file});
  table.add({"format", format + ", " + data::to_string(file->type())});
  table.add({"tokens", count_text(file->size())});
  table.add({"largest token", std::to_string(summary.largest)});
  if (file->has_mask()) table.add({"count in the loss", count_text(summary.counted)});
  if (tokenizer) {
    table.add({"tokenizer", tokenizer->name()});
    table.add({"begins with", Json(text).dump()});
  }
  print(table.text());
  return kOk;
}

void add_prepare(CLI::App& group, Action& action) {
  CLI::App* command = group.add_subcommand("prepare", "Make a token file from text and JSONL files");
  auto given = std::make_shared<PrepareArguments>();
  command->add_option("FILES", given->files, "Files, folders or patterns: .txt, .md, .jsonl")
      ->required()
      ->type_name("");
  command->add_option("--out", given->out, "The token file")->required()->type_name("FILE");
  command
      ->add_option("--tokenizer", given->tokenizer,
                   "byte (default), or the path of a tokenizer.json, of tiktoken ranks, or of a folder")
      ->type_name("PATH");
  command->add_option("--validation-out", given->validation_out, "A token file for evaluation")
      ->type_name("FILE");
  command
      ->add_option("--validation-fraction", given->options.validation_fraction,
                   "Part of the data for --validation-out; default: 0.05")
      ->check(CLI::Range(0.0, 0.999))
      ->type_name("PART");
  command->add_flag("--jsonl", given->options.jsonl,
                    "Read every file as JSONL; default: those that end in .jsonl");
  command->add_option("--text-key", given->options.text_key, "Key of the text in JSONL; default: text")
      ->type_name("KEY");
  command->add_flag("--whole-loss", given->whole_loss, "Prompts count in the loss too");
  command->add_flag("--json", given->json, "Print JSON");
  command->callback([given, &action] { action = [given] { return prepare(*given); }; });
}

void add_inspect_tokens(CLI::App& group, Action& action) {
  CLI::App* command = group.add_subcommand("inspect", "Check a token file, and show what it holds");
  auto given = std::make_shared<TokenFileArguments>();
  command->add_option("FILE", given->file, "A token file")->required()->type_name("");
  command
      ->add_option("--type", given->type, "Type of the tokens in a file without a header, such as nanoGPT's")
      ->check(CLI::IsMember({"uint16", "uint32"}))
      ->type_name("TYPE");
  command
      ->add_option("--tokenizer", given->tokenizer,
                   "Check that the tokenizer has all tokens, and show the first text")
      ->type_name("PATH");
  command->add_flag("--json", given->json, "Print JSON");
  command->callback([given, &action] { action = [given] { return inspect(*given); }; });
}

}  // namespace

void add_data(CLI::App& app, Action& action) {
  CLI::App* group = app.add_subcommand("data", "Make token files from texts, and inspect them");
  group->require_subcommand(1);
  add_prepare(*group, action);
  add_inspect_tokens(*group, action);
}

}  // namespace fsdp::app
