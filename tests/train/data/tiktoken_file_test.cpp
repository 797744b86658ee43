// Files of tiktoken's ranks. peer.tokenizers compares with tiktoken itself.
#include "trainer/data/tiktoken_file.h"

#include "vocabularies.h"

namespace fsdp::data {

namespace {

class TiktokenFile : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> open(const std::string& text) {
    return open_tiktoken_file(write_file(path_, text));
  }
  std::string open_error(const std::string& text) {
    return refusal([&] { open(text); });
  }
  // Ranks of bytes, and of tokens that are in no text, `count` in all.
  static std::string ranks(size_t count, size_t hole = SIZE_MAX) {
    std::string text = ranks_text({});
    for (size_t i = 256; i < count; ++i) {
      const std::string token = {'\xFF', static_cast<char>(i >> 16), static_cast<char>(i >> 8),
                                 static_cast<char>(i)};
      text += base64_of(token) + " " + std::to_string(i + (i >= hole ? 1 : 0)) + "\n";
    }
    return text;
  }
  TempFolder folder_;
  const std::string path_ = folder_ / "x.tiktoken";
};

}  // namespace

TEST_F(TiktokenFile, MergesTheLowestRankFirst) {
  const auto tokenizer = open(ranks_text({"bc", "ab", "abc", "cd", "aa"}));
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(257));
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(258));
  EXPECT_THAT(tokenizer->encode("bcd"), ElementsAre(256, 'd'));
  EXPECT_THAT(tokenizer->encode("abcd"), ElementsAre(258, 'd'));
  EXPECT_THAT(tokenizer->encode("aaa"), ElementsAre(260, 'a'));  // the leftmost of equal pairs
  EXPECT_THAT(tokenizer->encode("a b"), ElementsAre('a', ' ', 'b'));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{258, 'd', 261}), "abcd<|endoftext|>");
}

// No pair of neighbours gives "xyz", but tiktoken takes a piece that is a token as it is.
TEST_F(TiktokenFile, APieceThatIsATokenIsNotMerged) {
  const auto tokenizer = open(ranks_text({"xyz"}));
  EXPECT_THAT(tokenizer->encode("xyz"), ElementsAre(256));
  EXPECT_THAT(tokenizer->encode("xyzz"), ElementsAre('x', 'y', 'z', 'z'));
}

TEST_F(TiktokenFile, RecognisesPublishedVocabulariesByTheirSize) {
  struct Published {
    size_t ranks, hole;
    const char* name;
    int32_t end, size;
  };
  for (const Published& one : {Published{50256, SIZE_MAX, "r50k", 50256, 50257},
                               {50280, 50256, "p50k", 50256, 50281},
                               {100256, SIZE_MAX, "cl100k", 100257, 100277},
                               {128000, SIZE_MAX, "Llama 3", 128001, 128010},
                               {199998, SIZE_MAX, "o200k", 199999, 200019},
                               {1000, SIZE_MAX, "own", 1000, 1001}}) {
    const auto tokenizer = open(ranks(one.ranks, one.hole));
    EXPECT_THAT(tokenizer->name(), StartsWith(std::string("tiktoken ") + one.name + " ("));
    EXPECT_EQ(tokenizer->end_of_text(), one.end);
    EXPECT_EQ(tokenizer->vocab_size(), one.size);
  }
}

TEST_F(TiktokenFile, SplitsDigitsAsThePatternOfTheVocabulary) {
  EXPECT_THAT(open(ranks_text({"12", "34", "1234"}))->encode("1234"), ElementsAre(258));
  std::string llama = ranks(128000);
  llama.replace(llama.find(base64_of({"\xFF\0\1\0", 4})), 8, base64_of("12"));    // 256
  llama.replace(llama.find(base64_of({"\xFF\0\1\1", 4})), 8, base64_of("1234"));  // 257
  EXPECT_THAT(open(llama)->encode("1234"), ElementsAre(256, '3', '4'));           // groups of three digits
}

TEST_F(TiktokenFile, SpecialTokensAreTextUnlessAsked) {
  const auto tokenizer = open(ranks_text({"<|"}));
  EXPECT_EQ(tokenizer->encode("<|endoftext|>").size(), 12U);
  EXPECT_THAT(tokenizer->encode("a<|endoftext|>", SpecialTokens::as_tokens), ElementsAre('a', 257));
}

TEST_F(TiktokenFile, RefusesTextThatIsNotUtf8) {
  try {
    open(ranks_text({}))->encode("\u00e9\xff");
    FAIL();
  } catch (const InvalidUtf8& error) {
    EXPECT_EQ(error.offset(), 2U);
    EXPECT_THAT(error.what(), HasSubstr("0xFF"));
  }
}

TEST_F(TiktokenFile, RefusesBrokenLinesWithTheirNumber) {
  const std::string good = ranks_text({"ab"});
  for (const char* bad : {"QUI=", "QUI= ", "QUI= x", "QUI= 1x", "QUI= -1", "QUI= 99999999",
                          "QUI= 99999999999", " 5", "Q!I= 300", "QUI=  300", "= 300", "{\"a\": 1}"})
    EXPECT_THAT(open_error(good + bad + "\n"), AllOf(StartsWith(path_ + ":258: "), HasSubstr("base64")))
        << bad;
  EXPECT_THAT(open_error(good + "QUI= 256\n"), StartsWith(path_ + ":258: the rank 256 comes twice"));
  EXPECT_THAT(open_error(""), HasSubstr("empty"));
  EXPECT_THAT(open_error(good.substr(good.find('\n') + 1)),
              AllOf(StartsWith(path_ + ": byte 0 "), HasSubstr("has no token")));
  std::string windows = good;
  for (size_t at = 0; (at = windows.find('\n', at)) != std::string::npos; at += 2) windows.insert(at, "\r");
  EXPECT_THAT(open(windows)->encode("ab"), ElementsAre(256));
}

TEST_F(TiktokenFile, RefusesARankThatASpecialTokenHas) {
  EXPECT_THAT(open_error(ranks(50280)),
              AllOf(HasSubstr("rank 50256 is a token of the text"), HasSubstr("p50k")));
}

TEST_F(TiktokenFile, RefusesTokensThatAreNotThere) {
  const auto tokenizer = open(ranks(50280, 50256));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{50256}), "<|endoftext|>");
  for (const int32_t token : {50281, -1})
    EXPECT_THAT(refusal([&] { tokenizer->decode(std::vector<int32_t>{token}); }),
                HasSubstr("not in the vocabulary"));
}

// What a word is cut into must not depend on words before it (a cache), nor on its length.
TEST_F(TiktokenFile, ManyAndLongPiecesKeepTheirTokens) {
  const auto tokenizer = open(ranks_text({"aa", "aaaa"}));
  for (int i = 0; i < 70000; ++i) tokenizer->encode("w" + std::to_string(i));
  for (const size_t count : {1U, 2U, 3U, 31U, 32U, 33U, 1001U, 200000U}) {
    const std::vector<int32_t> tokens = tokenizer->encode(std::string(count, 'a'));
    EXPECT_EQ(tokens.size(), count / 4 + (count % 4 + 1) / 2) << count;
    EXPECT_EQ(tokenizer->decode(tokens), std::string(count, 'a'));
  }
}

TEST_F(TiktokenFile, BlocksAddUpToTheWholeText) {
  const auto tokenizer = open(ranks_text({"ab"}));
  std::string text;
  for (int i = 0; i < 50000; ++i) text += "ab, \u00e9\n";
  std::vector<int32_t> all;
  size_t blocks = 0, last = 0;
  tokenizer->encode(text, SpecialTokens::as_text, [&](std::span<const int32_t> tokens, size_t bytes_read) {
    all.insert(all.end(), tokens.begin(), tokens.end());
    EXPECT_EQ(tokenizer->decode(all).size(), bytes_read);
    last = bytes_read;
    ++blocks;
  });
  EXPECT_EQ(tokenizer->decode(all), text);
  EXPECT_EQ(last, text.size());
  EXPECT_GT(blocks, 2U);
}

}  // namespace fsdp::data
