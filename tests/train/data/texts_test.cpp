// Documents from texts and JSONL: what is encoded, what counts in the loss, what is kept for validation.
#include "trainer/data/texts.h"

#include <filesystem>
#include <numeric>

#include "support.h"

namespace fsdp::data {

namespace {

constexpr int32_t kEnd = 256;

std::vector<int64_t> tokens_of(const TokenSource& source) {
  std::vector<int64_t> tokens(static_cast<size_t>(source.size()));
  source.read(0, tokens);
  return tokens;
}

// The tokens as text, '|' for end of text. Bytes that do not count in the loss are between { and }.
std::string shown(const MemoryTokens& tokens) {
  std::vector<uint8_t> mask(static_cast<size_t>(tokens.size()));
  tokens.read_mask(0, mask);
  std::string text;
  bool counted = true;
  size_t i = 0;
  for (const int64_t token : tokens_of(tokens)) {
    if (counted != (mask[i] == 1)) text += counted ? '{' : '}';
    counted = mask[i++] == 1;
    text += token == kEnd ? '|' : static_cast<char>(token);
  }
  return text;
}

// A tokenizer of text: the byte tokenizer that refuses what is not UTF-8, as all others do.
class TextTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;
  void encode(std::string_view text, SpecialTokens specials, const TakeTokens& take) override {
    if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos)
      throw InvalidUtf8(at, "not UTF-8");
    bytes_->encode(text, specials, take);
  }
  std::string decode(std::span<const int32_t> tokens) const override { return bytes_->decode(tokens); }
  int32_t vocab_size() const override { return bytes_->vocab_size(); }
  std::optional<int32_t> end_of_text() const override { return std::nullopt; }
  std::string name() const override { return "text"; }

 private:
  std::unique_ptr<Tokenizer> bytes_ = byte_tokenizer();
};

class Texts : public ::testing::Test {
 protected:
  std::string file(const std::string& name, std::string_view text) {
    return write_file(folder_ / name, text);
  }
  TextCounts encode(const std::vector<std::string>& files, const TextOptions& options = {}) {
    train_ = {};
    validation_ = {};
    return encode_files(files, *tokenizer_, options, train_,
                        options.validation_fraction > 0 ? &validation_ : nullptr);
  }
  std::string error(const std::vector<std::string>& files, const TextOptions& options = {}) {
    return refusal([&] { encode(files, options); });
  }
  // The error of one JSONL file.
  std::string jsonl_error(std::string_view text, const TextOptions& options = {}) {
    return error({file("x.jsonl", text)}, options);
  }
  TempFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = byte_tokenizer();
  MemoryTokens train_, validation_;
};

}  // namespace

TEST_F(Texts, AFileIsADocument) {
  const TextCounts counts =
      encode({file("a.txt", "one\n\ntwo"), file("empty.txt", ""), file("b.md", "three\n")});
  EXPECT_EQ(shown(train_), "one\n\ntwo|three\n|");
  EXPECT_EQ(counts.documents, 2);
  EXPECT_EQ(counts.empty_documents, 1);
  EXPECT_EQ(counts.bytes, 14);
  EXPECT_FALSE(train_.has_mask());
}

TEST_F(Texts, TheNameOfASpecialTokenInATextEndsNothing) {
  encode({file("a.txt", "a<|endoftext|>")});
  EXPECT_EQ(shown(train_), "a<|endoftext|>|");
}

TEST_F(Texts, ALineOfJsonlIsADocument) {
  const TextCounts counts =
      encode({file("a.jsonl",
                   "{\"text\": \"one\\n\\u00e9\\ud83d\\ude00\"}\r\n \t\n\n{\"id\": 5, \"text\": \"two\"}\n"
                   "{\"text\": \"\"}\n{\"text\": \"last\"}")});
  EXPECT_EQ(shown(train_), "one\n\u00e9\U0001F600|two|last|");
  EXPECT_EQ(counts.documents, 3);
  EXPECT_EQ(counts.empty_documents, 1);
}

TEST_F(Texts, OnlyCompletionsCountInTheLoss) {
  const std::string path = file("a.jsonl", R"({"prompt": "Q: ", "completion": "yes"})"
                                           "\n"
                                           R"({"prompt": "", "completion": "no"})"
                                           "\n"
                                           R"({"prompt": "alone", "completion": ""})"
                                           "\n"
                                           R"({"text": "all"})"
                                           "\n");
  EXPECT_EQ(encode({path}).empty_documents, 1);
  EXPECT_EQ(shown(train_), "{Q: }yes|no|all|");
  encode({path}, {.completion_only = false});
  EXPECT_EQ(shown(train_), "Q: yes|no|all|");
  EXPECT_FALSE(train_.has_mask());
}

TEST_F(Texts, TextKeyNamesAnotherKey) {
  const std::string path = file("a.jsonl", R"({"body": "x", "text": "y", "prompt": 1, "completion": 2})");
  encode({path}, {.text_key = "body"});
  EXPECT_EQ(shown(train_), "x|");
}

TEST_F(Texts, FilesOfAnyNameMayBeJsonl) {
  const std::string path = file("a.txt", R"({"text": "x"})");
  encode({path});
  EXPECT_EQ(shown(train_), R"({"text": "x"}|)");
  encode({path}, {.jsonl = true});
  EXPECT_EQ(shown(train_), "x|");
}

TEST_F(Texts, RefusesBrokenLinesWithTheirNumber) {
  const std::string at = folder_ / "x.jsonl:";
  EXPECT_THAT(jsonl_error("{\"text\": \"a\"}\n\n{\"text\": \"b\"\n"),
              AllOf(StartsWith(at + "3: not JSON, at byte 13 of the line: "), HasSubstr("'}'")));
  EXPECT_THAT(jsonl_error("{\"text\": \"\xff\"}"),
              AllOf(StartsWith(at + "1: not JSON, at byte 11"), HasSubstr("UTF-8")));
  EXPECT_THAT(jsonl_error(R"({"text": "\ud800"})"),
              AllOf(StartsWith(at + "1: not JSON"), HasSubstr("surrogate")));
  EXPECT_THAT(jsonl_error("{\"text\": \"a\"} {}"), StartsWith(at + "1: not JSON, at byte 15"));
  EXPECT_THAT(jsonl_error("\"text\""), AllOf(StartsWith(at + "1: "), HasSubstr("of type string; an object")));
  EXPECT_THAT(jsonl_error("{\"text\": 5}"),
              AllOf(StartsWith(at + "1: "), HasSubstr("'text' is of type number")));
  EXPECT_THAT(jsonl_error("{\"txt\": \"a\", \"id\": 1}"),
              AllOf(StartsWith(at + "1: "), HasSubstr("'id', 'txt'")));
  EXPECT_THAT(jsonl_error("{}"), HasSubstr("no keys"));
  EXPECT_THAT(jsonl_error("{\"prompt\": \"a\"}"), HasSubstr("'prompt' and 'completion' are expected"));
  EXPECT_THAT(jsonl_error("{\"prompt\": \"a\", \"completion\": \"b\", \"text\": \"c\"}"),
              HasSubstr("only one of them"));
  EXPECT_THAT(jsonl_error("{\"text\": \"a\"}", {.text_key = "body"}),
              HasSubstr("no key 'body', only 'text'"));
}

TEST_F(Texts, RefusesBytesThatAreNotUtf8WithTheirOffset) {
  const std::string path = file("a.txt", "line one\nline \xff two\n");
  encode({path});  // the byte tokenizer takes any bytes
  EXPECT_EQ(train_.size(), 21);
  tokenizer_ = std::make_unique<TextTokenizer>();
  EXPECT_THAT(error({path}), AllOf(StartsWith(path + ":14: not UTF-8"), HasSubstr("byte tokenizer")));
  // The offset is that in the file, also in the part for validation.
  EXPECT_THAT(error({path}, {.validation_fraction = 0.5}), StartsWith(path + ":14: "));
}

TEST_F(Texts, RefusesTokenFilesAndMissingText) {
  const std::string tokens = file("a.bin", std::string("\x88\xD8\x34\x01", 4) + std::string(2000, '\0'));
  EXPECT_THAT(error({tokens}), AllOf(StartsWith(tokens + ":0: "), HasSubstr("data.format to tokens")));
  EXPECT_THAT(error({file("e.txt", "")}),
              AllOf(HasSubstr("no text is there for training"), HasSubstr("1 empty")));
  EXPECT_THAT(error({}), HasSubstr("no files"));
  EXPECT_THROW(encode({folder_ / "none.txt"}), IoError);
  EXPECT_THROW(encode({folder_.path()}), IoError);
}

TEST_F(Texts, ValidationIsTheEndOfEveryText) {
  std::string lines;
  for (int i = 100; i < 200; ++i) lines += std::to_string(i) + "\n";
  const TextCounts counts =
      encode({file("a.txt", lines), file("b.txt", "aaaa\nbbbb\ncccc\n")}, {.validation_fraction = 0.25});
  EXPECT_EQ(counts.documents, 2);
  EXPECT_EQ(counts.validation_documents, 2);
  const std::string train = shown(train_), validation = shown(validation_);
  EXPECT_THAT(train, StartsWith(lines.substr(0, 300)));
  EXPECT_THAT(validation, StartsWith("176\n"));
  // Every line is in one part only.
  EXPECT_EQ(train.substr(0, train.find('|')) + validation.substr(0, validation.find('|')), lines);
  EXPECT_THAT(train, HasSubstr("|aaaa\nbbbb\n|"));
  EXPECT_THAT(validation, HasSubstr("|cccc\n|"));
}

TEST_F(Texts, ATextWithoutLinesIsCutBeforeACharacter) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "\U0001F600";
  tokenizer_ = std::make_unique<TextTokenizer>();  // it would refuse half a character
  encode({file("a.txt", text)}, {.validation_fraction = 0.333});
  EXPECT_EQ(shown(train_) + shown(validation_), text);
  EXPECT_EQ(train_.size(), 132);
  tokenizer_ = byte_tokenizer();
  encode({file("b.txt", std::string(100, '\x80'))}, {.validation_fraction = 0.1});
  EXPECT_EQ(train_.size(), 91);
}

TEST_F(Texts, ValidationTakesExamplesAtEqualDistances) {
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += R"({"text": ")" + std::to_string(i) + "\"}\n{\"text\": \"\"}\n";
  const TextCounts counts =
      encode({file("a.jsonl", lines), file("b.jsonl", lines)}, {.validation_fraction = 0.2});
  EXPECT_EQ(shown(train_), "0|1|2|3|5|6|7|8|0|1|2|3|5|6|7|8|");
  EXPECT_EQ(shown(validation_), "4|9|4|9|");
  EXPECT_EQ(counts.documents, 16);
  EXPECT_EQ(counts.validation_documents, 4);
  encode({file("c.jsonl", lines)}, {.validation_fraction = 0.3});
  EXPECT_EQ(shown(validation_), "3|6|9|");
}

TEST_F(Texts, RefusesAPartForValidationThatIsEmpty) {
  const std::string path = file("a.jsonl", R"({"text": "x"})");
  EXPECT_THAT(error({path}, {.validation_fraction = 0.1}), HasSubstr("no text is left for validation"));
  EXPECT_THAT(error({file("a.txt", "x")}, {.validation_fraction = 0.5}),
              HasSubstr("no text is there for training"));
  for (const double fraction : {1.0, -0.1, 0.0 / 0.0})
    EXPECT_THAT(error({path}, {.validation_fraction = fraction}), HasSubstr("at least 0 and less than 1"));
  EXPECT_THAT(
      refusal([&] { encode_files({path}, *tokenizer_, {.validation_fraction = 0.5}, train_, nullptr); }),
      HasSubstr("without a destination"));
}

TEST_F(Texts, ProgressEndsAtTheSizeOfAllFiles) {
  int64_t last = 0, total = 0;
  const auto files = {file("a.txt", std::string(200000, 'a')),
                      file("b.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\"}")};
  encode_files(files, *tokenizer_, {}, train_, nullptr, [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, all);
    last = done;
    total = all;
  });
  EXPECT_EQ(last, 200027);
  EXPECT_EQ(total, 200027);
}

TEST_F(Texts, EncodesATextInMemory) {
  EXPECT_EQ(encode_text("some text", "memory", *tokenizer_, {}, train_, nullptr).documents, 1);
  EXPECT_EQ(shown(train_), "some text|");
  EXPECT_THAT(refusal([&] { encode_text("", "memory", *tokenizer_, {}, train_, nullptr); }),
              StartsWith("memory: no text"));
}

TEST_F(Texts, ExpandsFoldersAndPatterns) {
  std::filesystem::create_directories(folder_ / "sub/deep");
  const std::string b = file("b.txt", "b"), a = file("sub/a.md", "a"), c = file("sub/deep/c.jsonl", "c"),
                    d = file("sub/d.bin", "d");
  EXPECT_THAT(expand_paths({folder_.path()}), ElementsAre(b, a, c));
  EXPECT_THAT(expand_paths({folder_.path()}, {".bin"}), ElementsAre(d));
  EXPECT_THAT(expand_paths({d, b}), ElementsAre(d, b));  // in the order given, whatever the ending
  EXPECT_THAT(expand_paths({folder_ / "sub/?.*"}), ElementsAre(a, d));
  EXPECT_THAT(expand_paths({folder_ / "s*"}), ElementsAre(a, c));  // a folder matches
  const std::string odd = file("x[1].txt", "x");
  EXPECT_THAT(expand_paths({odd}), ElementsAre(odd));  // a file of that name comes first
  EXPECT_THAT(refusal([&] { expand_paths({folder_ / "none"}); }),
              AllOf(HasSubstr("/none: "), HasSubstr("no such file or folder")));
  EXPECT_THAT(refusal([&] { expand_paths({folder_ / "*.none"}); }), HasSubstr("no file matches"));
  EXPECT_THAT(refusal([&] { expand_paths({folder_ / "sub/deep"}, {".bin"}); }),
              HasSubstr("the folder has no .bin file"));
  EXPECT_THAT(refusal([&] { expand_paths({""}); }), StartsWith("'': "));
  EXPECT_THAT(refusal([&] { expand_paths({std::string(5000, 'x')}); }), HasSubstr("no such file or folder"));
}

}  // namespace fsdp::data
