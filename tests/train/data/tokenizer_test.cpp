// The byte tokenizer, UTF-8, base64, splitting of texts, and which file is which tokenizer.
#include "trainer/data/tokenizer.h"

#include <filesystem>

#include "trainer/data/base64.h"
#include "trainer/data/split_pattern.h"
#include "vocabularies.h"

namespace fsdp::data {

namespace {

using Strings = std::vector<std::string>;

Strings split(const std::string& pattern, std::string_view text, PatternSyntax syntax = PatternSyntax::rust) {
  Strings pieces;
  SplitPattern(pattern, syntax).split(text, [&](std::string_view piece, bool matched) {
    pieces.push_back((matched ? "" : "-") + std::string(piece));
  });
  return pieces;
}

}  // namespace

TEST(ByteTokenizer, TakesAnyBytes) {
  const auto tokenizer = open_tokenizer("byte");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::vector<int32_t> tokens = tokenizer->encode(all);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(tokens.at(static_cast<size_t>(byte)), byte);
  EXPECT_EQ(tokenizer->decode(tokens), all);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
  EXPECT_THAT(tokenizer->encode(""), ElementsAre());
}

TEST(ByteTokenizer, ReadsItsEndOfTextOnlyWhereAsked) {
  const auto tokenizer = byte_tokenizer();
  const std::string text = "a<|endoftext|><|endoftext|>b<|endoftext";
  EXPECT_EQ(tokenizer->encode(text).size(), text.size());
  const std::vector<int32_t> tokens = tokenizer->encode(text, SpecialTokens::as_tokens);
  EXPECT_EQ(tokens.size(), 4 + std::string_view("<|endoftext").size());
  EXPECT_THAT(std::vector<int32_t>(tokens.begin(), tokens.begin() + 4), ElementsAre('a', 256, 256, 'b'));
  EXPECT_EQ(tokenizer->decode(tokens), text);
}

TEST(ByteTokenizer, GivesLongTextsInBlocks) {
  const std::string text(200000, 'x');
  size_t tokens = 0, blocks = 0;
  byte_tokenizer()->encode(text, SpecialTokens::as_text,
                           [&](std::span<const int32_t> block, size_t bytes_read) {
                             tokens += block.size();
                             ++blocks;
                             EXPECT_EQ(bytes_read, tokens);
                           });
  EXPECT_EQ(tokens, text.size());
  EXPECT_GT(blocks, 1U);
}

TEST(ByteTokenizer, RefusesTokensItDoesNotHave) {
  for (const int32_t token : {257, -1})
    EXPECT_THAT(refusal([&] { byte_tokenizer()->decode(std::vector<int32_t>{token}); }),
                AllOf(HasSubstr("token " + std::to_string(token)), HasSubstr("257 tokens")));
}

TEST(Utf8, FindsTheFirstByteThatIsNoCharacter) {
  const auto whole = std::string_view::npos;
  for (const char* text :
       {"", "a", "\u00e9", "\u0800\ud7ff\ue000\uffff", "\U00010000\U0010ffff", "\u0301", "\u200d"})
    EXPECT_EQ(find_invalid_utf8(text), whole) << text;
  EXPECT_EQ(find_invalid_utf8(std::string_view("\0", 1)), whole);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2U);     // a byte that only continues
  EXPECT_EQ(find_invalid_utf8("a\xC0\x80"), 1U);  // longer than needed
  EXPECT_EQ(find_invalid_utf8("\xC1\xBF"), 0U);
  EXPECT_EQ(find_invalid_utf8("\xE0\x9F\xBF"), 0U);
  EXPECT_EQ(find_invalid_utf8("\xF0\x8F\xBF\xBF"), 0U);
  EXPECT_EQ(find_invalid_utf8("\xC3\xA9\xED\xA0\x80"), 2U);  // a surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0U);      // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\xF5\x80\x80\x80"), 0U);
  EXPECT_EQ(find_invalid_utf8("\xFF"), 0U);
  EXPECT_EQ(find_invalid_utf8("x\xE2\x82"), 1U);  // cut off
  EXPECT_EQ(find_invalid_utf8("x\xE2\x82y"), 1U);
}

// As bytes.decode("utf-8", errors="replace") of Python.
TEST(Utf8, ReplacesInvalidBytesAsPythonDoes) {
  const std::string mark = "\uFFFD";
  EXPECT_EQ(replace_invalid_utf8("a\u00e9\U0001F600"), "a\u00e9\U0001F600");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82y"), mark + "y");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), mark);
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), mark + mark + mark);
  EXPECT_EQ(replace_invalid_utf8("\xC0\x80\xFFz"), mark + mark + mark + "z");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), mark + mark + mark + mark);
}

TEST(Base64, GivesTheBytesBack) {
  const std::string bytes("\0\xFF\x10 any", 7);
  for (size_t size = 0; size <= bytes.size(); ++size)
    EXPECT_EQ(decode_base64(base64_of(bytes.substr(0, size))), bytes.substr(0, size));
  for (const char* bad : {"A", "AAA", "A===", "====", "AA=A", "AAA\n", "AAA-", "A AA"})
    EXPECT_EQ(decode_base64(bad), std::nullopt) << bad;
}

TEST(SplitPattern, CutsAsGpt2) {
  EXPECT_THAT(split(kGpt2Pattern, "I'll say  it's 42\n\n ok"),
              ElementsAre("I", "'ll", " say", " ", " it", "'s", " 42", "\n\n", " ok"));
  EXPECT_THAT(split(kGpt2Pattern, "na\u00efve\u3000\u6f22\u5b57\u0663"),
              ElementsAre("na\u00efve", "\u3000", "\u6f22\u5b57", "\u0663"));
  EXPECT_THAT(split(kGpt2Pattern, "e\u0301\U0001F468\u200d"), ElementsAre("e", "\u0301\U0001F468\u200d"));
}

// PCRE2 takes U+180E for white space, Unicode since 6.3 does not. U+0085 and U+2028 are white space.
TEST(SplitPattern, WhiteSpaceIsUnicodes) {
  EXPECT_THAT(split(R"(\s+)", "a\u180eb\u0085\u2028\u00a0c\u200bd"),
              ElementsAre("-a\u180eb", "\u0085\u2028\u00a0", "-c\u200bd"));
  EXPECT_THAT(split(R"([^\s]+)", "a\u180eb\u3000c"), ElementsAre("a\u180eb", "-\u3000", "c"));
  EXPECT_THAT(split(R"(\S+)", "a\u180eb\u3000c"), ElementsAre("a\u180eb", "-\u3000", "c"));
}

TEST(SplitPattern, DiffersByTheLibraryItFollows) {
  EXPECT_THAT(split("a$", "a\na", PatternSyntax::rust), ElementsAre("-a\n", "a"));
  EXPECT_THAT(split("a$", "a\na", PatternSyntax::oniguruma), ElementsAre("a", "-\n", "a"));
  EXPECT_THAT(split("a$", "a\n", PatternSyntax::rust), ElementsAre("-a\n"));
}

TEST(SplitPattern, RefusesWhatPcre2ReadsDifferently) {
  for (const char* pattern : {R"(\w+)", R"(\b)", R"(\h)", "[a[b]]", "[a&&b]", R"([^\S])", "(", "[a"})
    EXPECT_THAT(refusal([&] { SplitPattern(pattern, PatternSyntax::rust); }),
                AllOf(HasSubstr(pattern), HasSubstr("cannot be used")))
        << pattern;
}

TEST(SplitPattern, CutsPiecesOfAnyLength) {
  constexpr size_t kLong = 3000000;
  for (const char* pattern : {kGpt2Pattern, kLlama3Pattern, kCl100kPattern, kO200kPattern})
    for (const std::string& text :
         {std::string(kLong, 'a'), std::string(kLong, ' ') + "x", std::string(kLong, '!')}) {
      size_t bytes = 0;
      for (const std::string& piece : split(pattern, text)) bytes += piece.size();
      EXPECT_EQ(bytes, kLong + (text.ends_with('x') ? 1 : 0)) << pattern;
    }
}

TEST(OpenTokenizer, KnowsFilesByNameAndContent) {
  const TempFolder folder;
  const json file = tokenizer_json({{"a", "b"}});
  write_file(folder / "other.name", "\n " + file.dump());
  EXPECT_THAT(open_tokenizer(folder / "other.name")->encode("ab"), ElementsAre(256));
  write_file(folder / "ranks", ranks_text({"bc"}));
  EXPECT_THAT(open_tokenizer(folder / "ranks")->encode("abc"), ElementsAre('a', 256));

  write_file(folder / "vocab.json", file["model"]["vocab"].dump());
  EXPECT_THAT(refusal([&] { open_tokenizer(folder / "vocab.json"); }), HasSubstr("merges.txt is missing"));
  write_file(folder / "merges.txt", "#version: 0.2\na b\n");
  for (const char* path : {"vocab.json", "merges.txt", ""})
    EXPECT_THAT(open_tokenizer(folder / path)->encode("cab"), ElementsAre('c', 256)) << path;
  write_file(folder / "tokenizer.json", tokenizer_json({{"c", "a"}}).dump());
  EXPECT_THAT(open_tokenizer(folder.path())->encode("cab"), ElementsAre(256, 'b'));
}

TEST(OpenTokenizer, RefusesWhatIsNoTokenizer) {
  const TempFolder folder;
  EXPECT_THAT(refusal([&] { open_tokenizer("bytes"); }),
              AllOf(HasSubstr("'bytes'"), HasSubstr("'byte' is expected")));
  EXPECT_THAT(refusal([&] { open_tokenizer(std::string(5000, 'x')); }), HasSubstr("'byte' is expected"));
  EXPECT_THAT(refusal([&] { open_tokenizer(folder.path()); }), HasSubstr("no tokenizer.json"));
  write_file(folder / "tokenizer.model", "x");
  EXPECT_THAT(refusal([&] { open_tokenizer(folder.path()); }), HasSubstr("tiktoken's ranks, give its path"));
  write_file(folder / "empty", "");
  EXPECT_THAT(refusal([&] { open_tokenizer(folder / "empty"); }), HasSubstr("is empty"));
}

}  // namespace fsdp::data
