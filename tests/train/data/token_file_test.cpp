// Files of tokens: llm.c's and nanoGPT's, masks, broken files, and the windows that are cut from them.
#include "trainer/data/token_file.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <numeric>

#include "support.h"
#include "trainer/data/dataset.h"
#include "trainer/data/token_file_writer.h"
#include "trainer/data/token_range.h"

namespace fsdp::data {

namespace {

std::string header(int32_t magic, int32_t version, int32_t count, int32_t mask = 0) {
  std::vector<int32_t> words(kHeaderWords);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  words[3] = mask;
  return bytes_of(words);
}

std::vector<int64_t> read_all(const TokenSource& source) {
  std::vector<int64_t> tokens(static_cast<size_t>(source.size()));
  source.read(0, tokens);
  return tokens;
}

std::vector<uint8_t> mask_of(const TokenSource& source) {
  std::vector<uint8_t> mask(static_cast<size_t>(source.size()));
  source.read_mask(0, mask);
  return mask;
}

std::shared_ptr<const TokenSource> in_memory(std::vector<int32_t> tokens) {
  return std::make_shared<MemoryTokens>(std::move(tokens));
}

class TokenFiles : public ::testing::Test {
 protected:
  std::string open_error(std::string_view bytes, TokenType type = TokenType::from_header) {
    const std::string path = write_file(folder_ / "x.bin", bytes);
    return refusal([&] { TokenFile::open(path, type); });
  }
  TempFolder folder_;
  const std::string path_ = folder_ / "x.bin";
};

}  // namespace

TEST_F(TokenFiles, ReadsGpt2FilesOfLlmC) {
  write_file(path_, header(20240520, 1, 4) + bytes_of<uint16_t>({0, 50256, 65535, 7}));
  const auto file = TokenFile::open(path_);
  EXPECT_EQ(file->type(), TokenType::uint16);
  EXPECT_THAT(read_all(*file), ElementsAre(0, 50256, 65535, 7));
  EXPECT_FALSE(file->has_mask());
  EXPECT_THAT(mask_of(*file), ElementsAre(1, 1, 1, 1));
}

TEST_F(TokenFiles, ReadsLlama3FilesOfLlmC) {
  write_file(path_, header(20240801, 7, 3) + bytes_of<uint32_t>({128001, 0, 4294967295U}));
  const auto file = TokenFile::open(path_);
  EXPECT_EQ(file->type(), TokenType::uint32);
  EXPECT_THAT(read_all(*file), ElementsAre(128001, 0, 4294967295));
}

TEST_F(TokenFiles, ReadsNanoGptFilesOfBothTypes) {
  write_file(path_, bytes_of<uint16_t>({1, 2, 50256, 40000}));
  EXPECT_THAT(read_all(*TokenFile::open(path_, TokenType::uint16)), ElementsAre(1, 2, 50256, 40000));
  EXPECT_THAT(read_all(*TokenFile::open(path_, TokenType::uint32)), ElementsAre(0x20001, 0x9C40C450));
}

TEST_F(TokenFiles, AHeaderBeatsNoType) {
  write_file(path_, header(20240520, 1, 1) + bytes_of<uint16_t>({5}));
  EXPECT_THAT(read_all(*TokenFile::open(path_, TokenType::uint16)), ElementsAre(5));
  EXPECT_THAT(refusal([&] { TokenFile::open(path_, TokenType::uint32); }),
              AllOf(StartsWith(path_ + ":0: "), HasSubstr("uint16 tokens, but token_type is uint32")));
}

TEST_F(TokenFiles, RefusesBrokenFilesWithTheirOffset) {
  const std::string good = header(20240520, 1, 3) + bytes_of<uint16_t>({1, 2, 3});
  EXPECT_THAT(open_error(""), AllOf(StartsWith(path_ + ":0: "), HasSubstr("empty")));
  EXPECT_THAT(open_error("some text, no tokens"),
              AllOf(StartsWith(path_ + ":0: "), HasSubstr("20240520"), HasSubstr("token_type")));
  EXPECT_THAT(open_error(good.substr(0, 1000)),
              AllOf(StartsWith(path_ + ":1000: "), HasSubstr("1024 bytes")));
  EXPECT_THAT(open_error(header(20240520, 2, 0)), AllOf(StartsWith(path_ + ":4: "), HasSubstr("version 2 ")));
  EXPECT_THAT(open_error(header(20240801, 1, 0)), AllOf(StartsWith(path_ + ":4: "), HasSubstr("version 7 ")));
  for (const std::string& bytes : {good.substr(0, good.size() - 1), good + "xx", header(20240520, 1, -1)})
    EXPECT_THAT(open_error(bytes), AllOf(StartsWith(path_ + ":8: "), HasSubstr("follow the header")));
  EXPECT_THAT(open_error("abc", TokenType::uint16),
              AllOf(StartsWith(path_ + ":2: "), HasSubstr("half a token")));
  EXPECT_THAT(open_error("abcdef", TokenType::uint32), StartsWith(path_ + ":4: half a token"));
  EXPECT_THAT(open_error("a", TokenType::from_header), StartsWith(path_ + ":0: no header"));
}

TEST_F(TokenFiles, RefusesACountThatOverflows) {
  std::vector<int32_t> words(kHeaderWords);
  words[0] = kMagicUint32;
  words[1] = kVersionUint32;
  words[4] = 0x40000000;  // 2^62 tokens of 4 bytes are 2^64 bytes, 0 in 64 bits
  EXPECT_THAT(open_error(bytes_of(words)),
              AllOf(StartsWith(path_ + ":8: "), HasSubstr("4611686018427387904 tokens")));
}

TEST_F(TokenFiles, RefusesTokensBeyondTheVocabulary) {
  write_file(path_, header(20240520, 1, 4) + bytes_of<uint16_t>({1, 99, 100, 2}));
  const auto file = TokenFile::open(path_, TokenType::from_header, 100);
  std::vector<int64_t> two(2);
  file->read(0, two);
  EXPECT_THAT(refusal([&] { file->read(1, two); }),
              AllOf(StartsWith(path_ + ":1028: token 100 "), HasSubstr("vocabulary of 100")));
  EXPECT_EQ(refusal([&] { read_all(*TokenFile::open(path_, TokenType::from_header, 101)); }), "no error");
}

TEST_F(TokenFiles, RefusesRangesThatAreNotThere) {
  write_file(path_, bytes_of<uint16_t>({1, 2, 3}));
  const auto file = TokenFile::open(path_, TokenType::uint16);
  std::vector<int64_t> two(2);
  for (const int64_t begin : {int64_t{-1}, int64_t{2}, int64_t{4}, INT64_MAX, INT64_MIN})
    EXPECT_THAT(refusal([&] { file->read(begin, two); }), HasSubstr("there are 3")) << begin;
}

TEST_F(TokenFiles, ReadsBeyondFourGigabytes) {
  constexpr int64_t kTokens = (int64_t{1} << 32) + 5;  // 8 GiB; a hole takes no room on the disk
  {
    std::vector<int32_t> words(kHeaderWords);
    words[0] = kMagicUint16;
    words[1] = kVersionUint16;
    words[2] = 5;
    words[4] = 1;
    write_file(path_, bytes_of(words));
    std::filesystem::resize_file(path_, 1024 + 2 * kTokens);
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(1024 + 2 * (kTokens - 2)).write("\x01\x02\x03\x04", 4);
  }
  const auto file = TokenFile::open(path_, TokenType::from_header, 1000);
  EXPECT_EQ(file->size(), kTokens);
  std::vector<int64_t> tokens(1);
  EXPECT_THAT(refusal([&] { file->read(kTokens - 1, tokens); }),
              StartsWith(path_ + ":8589935624: token 1027 "));
  const Dataset windows({file}, 1 << 20);
  EXPECT_EQ(windows.samples(), uint64_t{4096});
  std::vector<int64_t> inputs(1 << 20), targets(1 << 20);
  windows.read(4095, inputs, targets);
  EXPECT_EQ(targets.back(), 0);
}

TEST_F(TokenFiles, AFileThatBecameShorterIsAnError) {
  write_file(path_, bytes_of(std::vector<uint16_t>(100000, 7)));
  const auto file = TokenFile::open(path_, TokenType::uint16);
  std::filesystem::resize_file(path_, 5000);
  EXPECT_THAT(refusal([&] { read_all(*file); }),
              AllOf(StartsWith(path_ + ":5000: the file ends here"), HasSubstr("200000 bytes")));
  std::filesystem::resize_file(path_, 200000);
  EXPECT_EQ(refusal([&] { read_all(*file); }), "no error");
}

TEST_F(TokenFiles, AFileThatIsReplacedStaysAsItWas) {
  write_file(path_, bytes_of<uint16_t>({1, 2, 3}));
  const auto file = TokenFile::open(path_, TokenType::uint16);
  std::filesystem::rename(write_file(folder_ / "y", "ab"), path_);
  EXPECT_THAT(read_all(*file), ElementsAre(1, 2, 3));
  std::filesystem::remove(path_);
  EXPECT_THAT(read_all(*file), ElementsAre(1, 2, 3));
}

TEST_F(TokenFiles, MissingFilesAndFoldersAreIoErrors) {
  EXPECT_THROW(TokenFile::open(folder_ / "none.bin"), IoError);
  EXPECT_THROW(TokenFile::open(folder_.path()), IoError);
}

TEST_F(TokenFiles, WritesWhatItReads) {
  for (const auto& [vocabulary, type] : {std::pair{65536, TokenType::uint16}, {65537, TokenType::uint32}}) {
    std::vector<int32_t> tokens(600000);  // more than a block
    std::iota(tokens.begin(), tokens.end(), 0);
    for (int32_t& token : tokens) token %= vocabulary;
    TokenFileWriter writer(path_, vocabulary);
    writer.add(tokens, true);
    writer.sync();
    writer.commit();
    const auto file = TokenFile::open(path_, TokenType::from_header, vocabulary);
    EXPECT_EQ(file->type(), type);
    EXPECT_EQ(read_all(*file), std::vector<int64_t>(tokens.begin(), tokens.end()));
    EXPECT_FALSE(file->has_mask());
    EXPECT_THAT(refusal([&] { writer.add(std::vector<int32_t>{vocabulary}, true); }),
                HasSubstr("is not in the vocabulary"));
  }
}

TEST_F(TokenFiles, WritesAMaskOnceATokenDoesNotCount) {
  TokenFileWriter writer(path_, 257);
  writer.add(std::vector<int32_t>{1, 2}, true);
  writer.add(std::vector<int32_t>{3}, false);
  writer.add(std::vector<int32_t>{4, 5}, true);
  writer.sync();
  writer.commit();
  EXPECT_EQ(writer.counted(), 4);
  EXPECT_THAT(mask_of(*TokenFile::open(path_)), ElementsAre(1, 1, 0, 1, 1));

  write_file(path_ + ".mask", std::string("\1\1\2\1\1", 5));
  EXPECT_THAT(refusal([&] { mask_of(*TokenFile::open(path_)); }),
              StartsWith(path_ + ".mask:2: byte 2 in a mask"));
  write_file(path_ + ".mask", "\1\1");
  EXPECT_THAT(refusal([&] { TokenFile::open(path_); }), StartsWith(path_ + ".mask:2: the mask ends here"));
  std::filesystem::remove(path_ + ".mask");
  EXPECT_THAT(refusal([&] { TokenFile::open(path_); }),
              AllOf(StartsWith(path_ + ":12: "), HasSubstr("is missing")));
}

TEST_F(TokenFiles, ANewFileLeavesNoOldMask) {
  write_file(path_, "old");
  write_file(path_ + ".mask", "old");
  {
    TokenFileWriter given_up(path_, 257);
    given_up.add(std::vector<int32_t>{1}, false);
  }
  EXPECT_EQ(file_text(path_), "old");
  EXPECT_EQ(file_text(path_ + ".mask"), "old");
  TokenFileWriter writer(path_, 257);
  writer.add(std::vector<int32_t>{1}, true);
  writer.sync();
  writer.commit();
  EXPECT_FALSE(std::filesystem::exists(path_ + ".mask"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST(Dataset, CutsWindowsAcrossFiles) {
  const Dataset windows(
      {in_memory({0, 1, 2}), in_memory({}), in_memory({3, 4}), in_memory({5, 6, 7, 8, 9, 10, 11})}, 4);
  ASSERT_EQ(windows.samples(), 2U);  // 12 tokens: the last three are no window
  EXPECT_EQ(windows.tokens(), 12);
  std::vector<int64_t> inputs(4), targets(4);
  windows.read(0, inputs, targets);
  EXPECT_THAT(inputs, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(targets, ElementsAre(1, 2, 3, 4));
  windows.read(1, inputs, targets);
  EXPECT_THAT(inputs, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(targets, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(refusal([&] { windows.read(2, inputs, targets); }), HasSubstr("there are 2"));
}

TEST(Dataset, TargetsThatDoNotCountAreIgnored) {
  auto masked = std::make_shared<MemoryTokens>();
  masked->add(std::vector<int32_t>{10, 11}, false);
  masked->add(std::vector<int32_t>{12}, true);
  const Dataset windows({in_memory({1, 2}), masked}, 4);
  std::vector<int64_t> inputs(4), targets(4);
  windows.read(0, inputs, targets);
  EXPECT_THAT(inputs, ElementsAre(1, 2, 10, 11));
  EXPECT_THAT(targets, ElementsAre(2, kIgnoredTarget, kIgnoredTarget, 12));
}

TEST(Dataset, NeedsOneTokenMoreThanTheLength) {
  EXPECT_EQ(Dataset({in_memory({1, 2, 3})}, 2).samples(), 1U);
  EXPECT_THAT(refusal([] { Dataset({in_memory({1, 2, 3})}, 3); }), HasSubstr("the data has 3 tokens"));
  EXPECT_THAT(refusal([] { Dataset({}, 3); }), HasSubstr("the data has 0 tokens"));
  EXPECT_THAT(refusal([] { Dataset({in_memory({1, 2, 3})}, 0); }), HasSubstr("at least 1"));
}

TEST(Dataset, PartsOfASourceDoNotOverlap) {
  auto whole = std::make_shared<MemoryTokens>();
  whole->add(std::vector<int32_t>{0, 1, 2, 3}, true);
  whole->add(std::vector<int32_t>{4}, false);
  const TokenRange train(whole, 0, 3), validation(whole, 3, 2);
  EXPECT_THAT(read_all(train), ElementsAre(0, 1, 2));
  EXPECT_THAT(read_all(validation), ElementsAre(3, 4));
  EXPECT_THAT(mask_of(validation), ElementsAre(1, 0));
  std::vector<int64_t> two(2);
  EXPECT_THAT(refusal([&] { train.read(2, two); }), HasSubstr("there are 3"));
}

}  // namespace fsdp::data
