// tokenizer.json, and vocab.json with merges.txt. peer.tokenizers compares with `tokenizers` itself.
#include "trainer/data/hf_tokenizer.h"

#include "vocabularies.h"

namespace fsdp::data {

namespace {

class HfTokenizer : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> open(const json& file) {
    return open_hf_tokenizer(write_file(path_, file.dump()));
  }
  std::string open_error(const json& file) {
    return refusal([&] { open(file); });
  }
  // The error with `value` at `where` of a good file.
  std::string error_with(const std::string& where, const json& value) {
    json file = good_;
    file[json::json_pointer(where)] = value;
    return open_error(file);
  }
  json added(int token, const std::string& text, bool special = true, bool normalized = false) {
    return {{"id", token}, {"content", text}, {"special", special}, {"normalized", normalized}};
  }
  TempFolder folder_;
  const std::string path_ = folder_ / "tokenizer.json";
  const json good_ = tokenizer_json({{"a", "b"}, {"ab", "c"}, {"\xC3", "\xA9"}, {" ", "ab"}});
};

}  // namespace

TEST_F(HfTokenizer, MergesInTheOrderOfTheFile) {
  const auto tokenizer = open(good_);
  EXPECT_THAT(tokenizer->encode("abc ab"), ElementsAre(257, 259));
  EXPECT_THAT(tokenizer->encode("\u00e9"), ElementsAre(258));  // C3 A9
  EXPECT_THAT(tokenizer->encode(std::string_view("\0\n\x7f", 3)), ElementsAre(0, '\n', 0x7f));
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->end_of_text(), 260);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{259, 257, 260}), " ababc<|endoftext|>");
}

TEST_F(HfTokenizer, ReadsMergesInBothForms) {
  json file = good_;
  for (json& merge : file["model"]["merges"]) {
    const std::string text = merge;
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  EXPECT_THAT(open(file)->encode("abc ab"), ElementsAre(257, 259));
}

TEST_F(HfTokenizer, TakesWholePiecesIfMergesAreIgnored) {
  json file = good_;
  file["model"]["vocab"]["xyz"] = 261;
  EXPECT_THAT(open(file)->encode("xyz"), ElementsAre('x', 'y', 'z'));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(open(file)->encode("xyz"), ElementsAre(261));
}

TEST_F(HfTokenizer, FindsAddedTokens) {
  json file = good_;
  file["added_tokens"] = {added(260, "<|endoftext|>"), added(261, "<tool>", false),
                          added(262, "<tool> x", false, true)};
  const auto tokenizer = open(file);
  // <tool> is found first: it is not normalized. A longer one wins among those of one kind.
  EXPECT_THAT(tokenizer->encode("a<tool> x"), ElementsAre('a', 261, ' ', 'x'));
  EXPECT_EQ(tokenizer->encode("<|endoftext|>").size(), 13U);
  EXPECT_THAT(tokenizer->encode("<|endoftext|>", SpecialTokens::as_tokens), ElementsAre(260));
  file["added_tokens"][2]["normalized"] = false;
  EXPECT_THAT(open(file)->encode("a<tool> x"), ElementsAre('a', 262));
}

TEST_F(HfTokenizer, SplitsAsThePreTokenizerSays) {
  json file = good_;
  file["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_THAT(open(file)->encode("ab"), ElementsAre(259));
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  EXPECT_THAT(open(file)->encode("c ab"), ElementsAre('c', 259));
  const json bytes = file["pre_tokenizer"];
  const auto sequence = [&](const json& first) {
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {first, bytes}}};
    return open(file);
  };
  EXPECT_THAT(sequence({{"type", "Digits"}, {"individual_digits", true}})->encode("ab1ab"),
              ElementsAre(256, '1', 256));
  json split = {
      {"type", "Split"}, {"pattern", {{"String", "b."}}}, {"behavior", "Isolated"}, {"invert", false}};
  EXPECT_THAT(sequence(split)->encode("abc"), ElementsAre(257));
  split["pattern"] = {{"Regex", "b."}};
  EXPECT_THAT(sequence(split)->encode("abc"), ElementsAre('a', 'b', 'c'));
  split["behavior"] = "Removed";
  EXPECT_THAT(refusal([&] { sequence(split); }),
              HasSubstr("the behavior 'Removed' of Split is not supported"));
  split["invert"] = true;
  EXPECT_THAT(sequence(split)->encode("abcab."), ElementsAre('b', 'c', 'b', '.'));
}

TEST_F(HfTokenizer, EndOfTextIsTheConfiguredOne) {
  json file = good_;
  file["added_tokens"] = {added(260, "<|endoftext|>"), added(261, "<eos>")};
  const std::string config = folder_ / "tokenizer_config.json";
  EXPECT_EQ(open(file)->end_of_text(), 260);
  write_file(config, R"({"eos_token": "<eos>"})");
  EXPECT_EQ(open(file)->end_of_text(), 261);
  write_file(config, R"({"eos_token": {"content": "<eos>"}})");
  EXPECT_EQ(open(file)->end_of_text(), 261);
  write_file(config, R"({"eos_token": null})");
  EXPECT_EQ(open(file)->end_of_text(), 260);
  file["added_tokens"] = json::array();
  EXPECT_EQ(open(file)->end_of_text(), std::nullopt);
}

TEST_F(HfTokenizer, NamesWhatIsNotSupported) {
  const std::string model = path_ + ": model", pre = path_ + ": pre_tokenizer";
  EXPECT_THAT(error_with("/model/type", "Unigram"),
              AllOf(StartsWith(model + ".type: "), HasSubstr("'Unigram'")));
  EXPECT_THAT(error_with("/model/byte_fallback", true), AllOf(StartsWith(model), HasSubstr("SentencePiece")));
  EXPECT_THAT(error_with("/model/dropout", 0.1), StartsWith(model + ".dropout: "));
  EXPECT_THAT(error_with("/model/end_of_word_suffix", "</w>"),
              AllOf(StartsWith(model + ".end_of_word_suffix"), HasSubstr("</w>")));
  EXPECT_THAT(error_with("/normalizer", {{"type", "NFC"}}),
              AllOf(StartsWith(path_ + ": normalizer: "), HasSubstr("'NFC'")));
  EXPECT_THAT(error_with("/pre_tokenizer", {{"type", "Whitespace"}}),
              AllOf(StartsWith(pre), HasSubstr("'Whitespace'")));
  EXPECT_THAT(error_with("/pre_tokenizer", nullptr), AllOf(StartsWith(pre), HasSubstr("no ByteLevel")));
  EXPECT_THAT(error_with("/added_tokens/0/lstrip", true),
              AllOf(StartsWith(path_ + ": added_tokens[0]: lstrip"), HasSubstr("<|endoftext|>")));
  EXPECT_EQ(error_with("/model/dropout", 0.0), "no error");
  EXPECT_EQ(error_with("/normalizer", {{"type", "Sequence"}, {"normalizers", json::array()}}), "no error");
  json nested = good_["pre_tokenizer"];
  for (int i = 0; i < 10; ++i) nested = {{"type", "Sequence"}, {"pretokenizers", {nested}}};
  EXPECT_THAT(error_with("/pre_tokenizer", nested), HasSubstr("nested more than 8"));
}

TEST_F(HfTokenizer, RefusesVocabulariesThatDoNotFitTogether) {
  const std::string vocab = path_ + ": model.vocab";
  EXPECT_THAT(error_with("/model/vocab/new", 97),
              AllOf(StartsWith(vocab), HasSubstr("token 97 comes twice")));
  EXPECT_THAT(error_with("/model/vocab/new", -1),
              AllOf(StartsWith(vocab + ": 'new': a token is expected"), HasSubstr("found -1")));
  EXPECT_THAT(error_with("/model/vocab/new", 1 << 22), HasSubstr("found 4194304"));
  EXPECT_THAT(error_with("/model/vocab/new", "5"), HasSubstr("found \"5\""));
  EXPECT_THAT(error_with("/model/vocab/two words", 300),
              HasSubstr("'two words' is not written in the characters"));
  EXPECT_THAT(error_with("/model/vocab", json::object()), HasSubstr("empty"));
  EXPECT_THAT(error_with("/model/vocab", 5),
              AllOf(StartsWith(vocab + ": an object is expected, found number")));
  EXPECT_THAT(error_with("/model/merges/1", "ab"), StartsWith(path_ + ": model.merges[1]: two tokens"));
  EXPECT_THAT(error_with("/model/merges/1", "a b c"), StartsWith(path_ + ": model.merges[1]: two tokens"));
  EXPECT_THAT(error_with("/model/merges/1", {"a"}), StartsWith(path_ + ": model.merges[1]: two tokens"));
  EXPECT_THAT(error_with("/model/merges/1", "a q"),
              AllOf(StartsWith(path_ + ": model.merges[1]: "), HasSubstr("'aq'")));
  EXPECT_THAT(error_with("/added_tokens/0/id", 5), AllOf(StartsWith(path_ + ": "), HasSubstr("token 5 is ")));
  EXPECT_THAT(error_with("/added_tokens/0/content", ""), HasSubstr("no text"));
  json file = good_;
  file["model"]["vocab"].erase("z");
  EXPECT_THAT(open_error(file), HasSubstr("byte 122 has no token"));
  file = good_;
  file.erase("model");
  EXPECT_THAT(open_error(file), StartsWith(path_ + ": there is no key 'model'"));
}

TEST_F(HfTokenizer, RefusesBrokenJsonWithItsOffset) {
  const auto error = [&](const std::string& text) {
    return refusal([&] { open_hf_tokenizer(write_file(path_, text)); });
  };
  EXPECT_THAT(error(R"({"a": x})"), StartsWith(path_ + ":6: not JSON: "));
  EXPECT_THAT(error(R"({"a": 1)"), StartsWith(path_ + ":7: not JSON: "));
  EXPECT_THAT(error(""), StartsWith(path_ + ":0: not JSON: "));
  EXPECT_THAT(error("{\"\xff\": 1}"), StartsWith(path_ + ":2: not JSON: "));
  EXPECT_THAT(error("[1]"), StartsWith(path_ + ": an object is expected, found array"));
  std::string deep(200000, '[');
  EXPECT_THAT(
      error(R"({"model": {"vocab": {"a": )" + deep + std::string(200000, ']') + "}, \"merges\": []}}"),
      HasSubstr("found array"));
}

TEST_F(HfTokenizer, RefusesBrokenMergesWithTheirLine) {
  const std::string vocab = write_file(folder_ / "vocab.json", good_["model"]["vocab"].dump());
  const std::string merges = folder_ / "merges.txt";
  const auto error = [&](const std::string& text) {
    write_file(merges, "#version: 0.2\r\na b\r\n" + text);
    return refusal([&] { open_gpt2_tokenizer(vocab, merges); });
  };
  EXPECT_EQ(error("\nab c"), "no error");
  EXPECT_THAT(error("ab"), StartsWith(merges + ":3: two tokens"));
  EXPECT_THAT(error("\nab q\n"), StartsWith(merges + ":4: the merge of 'ab' and 'q'"));
  EXPECT_THAT(error("\xff a\n"), StartsWith(merges + ":3: the line is not UTF-8"));
}

TEST_F(HfTokenizer, Gpt2PairsHaveAnEndOfTextIfItIsInTheVocabulary) {
  json vocab = good_["model"]["vocab"];
  write_file(folder_ / "merges.txt", "a b\n");
  const auto open_pair = [&] {
    return open_gpt2_tokenizer(write_file(folder_ / "vocab.json", vocab.dump()), folder_ / "merges.txt");
  };
  EXPECT_EQ(open_pair()->end_of_text(), std::nullopt);
  vocab["<|endoftext|>"] = 260;
  const auto tokenizer = open_pair();
  EXPECT_EQ(tokenizer->end_of_text(), 260);
  EXPECT_THAT(tokenizer->encode("ab<|endoftext|>", SpecialTokens::as_tokens), ElementsAre(256, 260));
}

}  // namespace fsdp::data
