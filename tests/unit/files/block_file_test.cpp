#include "files/block_file.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <fstream>
#include <random>

#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

using detail::BlockReader;
using detail::BlockWriter;
using detail::kBlockBytes;
using detail::posix_files;
using detail::SavedFile;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string noise(int64_t bytes, unsigned seed = 7) {
  std::mt19937 random(seed);
  std::string text(static_cast<size_t>(bytes), '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

SavedFile write(const std::string& folder, const std::string& header, const std::string& data, size_t piece) {
  BlockWriter writer(posix_files(), folder, "f", header);
  for (size_t at = 0; at < data.size(); at += piece)
    writer.append(std::as_bytes(std::span(data)).subspan(at, std::min(piece, data.size() - at)));
  return writer.finish();
}

// What is passed on of [begin, end) until an error, which is thrown after `got` is filled.
void read_into(std::string& got, const std::string& folder, const SavedFile& saved, int64_t begin,
               int64_t end) {
  BlockReader reader(posix_files(), folder, saved);
  reader.read(begin, end, [&](std::span<const std::byte> bytes) {
    got.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
}

void flip(const std::string& path, int64_t byte, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(byte);
  const char c = static_cast<char>(file.get() ^ (1 << bit));
  file.seekp(byte);
  file.put(c);
}

TEST(BlockFile, ComesBackAroundTheBordersOfBlocks) {
  const int64_t b = kBlockBytes;
  for (const int64_t size : {int64_t{0}, int64_t{1}, b - 1, b, b + 1, 2 * b - 1, 2 * b, 2 * b + 17})
    for (const size_t piece :
         {size_t{1} << 30, size_t{4099}, static_cast<size_t>(b), static_cast<size_t>(b) + 3}) {
      const TempFolder folder;
      const std::string data = noise(size);
      const SavedFile saved = write(folder.path(), "header", data, piece);
      EXPECT_EQ(saved.name, "f");
      EXPECT_EQ(saved.header_bytes, 6);
      EXPECT_EQ(saved.data_bytes, size);
      EXPECT_EQ(static_cast<int64_t>(saved.blocks.size()), (size + b - 1) / b);
      std::string got;
      read_into(got, folder.path(), saved, 0, size);
      EXPECT_TRUE(got == data) << size << " in pieces of " << piece;
    }
}

TEST(BlockFile, AnyPartCanBeRead) {
  const TempFolder folder;
  const std::string data = noise(3 * kBlockBytes + 5);
  const SavedFile saved = write(folder.path(), "header", data, data.size());
  std::mt19937 random(3);
  std::uniform_int_distribution<int64_t> place(0, saved.data_bytes);
  BlockReader reader(posix_files(), folder.path(), saved);
  for (int i = 0; i < 200; ++i) {
    const auto [begin, end] = std::minmax({place(random), place(random)});
    std::string got;
    reader.read(begin, end, [&](std::span<const std::byte> bytes) {
      got.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
    const std::string wanted = data.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    EXPECT_TRUE(got == wanted);
    std::string in_place(wanted.size(), '\0');
    reader.read_into(begin, std::as_writable_bytes(std::span(in_place)));
    EXPECT_TRUE(in_place == wanted) << begin << " to " << end;
  }
}

TEST(BlockFile, AFlippedBitAnywhereIsRefusedBeforeAByteIsPassedOn) {
  const TempFolder folder;
  const SavedFile saved = write(folder.path(), noise(40, 1), noise(200, 2), 64);
  for (int64_t byte = 0; byte < 240; ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      flip(folder / "f", byte, bit);
      std::string got;
      EXPECT_THROW(read_into(got, folder.path(), saved, 199, 200), CheckpointError);
      EXPECT_EQ(got, "") << byte << ", bit " << bit;
      flip(folder / "f", byte, bit);
    }
}

TEST(BlockFile, BytesOfADamagedBlockAreNeverPassedOn) {
  const TempFolder folder;
  const std::string data = noise(2 * kBlockBytes + 100);
  const SavedFile saved = write(folder.path(), "header", data, data.size());
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    const int64_t byte = std::uniform_int_distribution<int64_t>(0, saved.data_bytes - 1)(random);
    flip(folder / "f", 6 + byte, i % 8);
    std::string got;
    EXPECT_THAT([&] { read_into(got, folder.path(), saved, 0, saved.data_bytes); },
                ThrowsMessage<CheckpointError>(HasSubstr("is damaged: bytes ")));
    EXPECT_TRUE(got == data.substr(0, static_cast<size_t>(byte / kBlockBytes * kBlockBytes)));
    BlockReader reader(posix_files(), folder.path(), saved);
    std::string in_place(data.size(), '\0');
    EXPECT_THROW(reader.read_into(0, std::as_writable_bytes(std::span(in_place))), CheckpointError);
    flip(folder / "f", 6 + byte, i % 8);
  }
}

TEST(BlockFile, ADamagedBlockIsNotRememberedAsGood) {
  const TempFolder folder;
  const SavedFile saved = write(folder.path(), "header", noise(100), 100);
  flip(folder / "f", 50, 0);
  BlockReader reader(posix_files(), folder.path(), saved);
  for (int i = 0; i < 2; ++i)
    EXPECT_THROW(reader.read(0, 100, [](auto) { FAIL() << "passed on"; }), CheckpointError);
}

TEST(BlockFile, AnotherSizeIsRefused) {
  const TempFolder folder;
  const SavedFile saved = write(folder.path(), "header", noise(100), 100);
  std::string got;
  for (const uintmax_t size : {0, 5, 6, 105, 107, 1000000}) {
    std::filesystem::resize_file(folder / "f", size);
    EXPECT_THAT([&] { read_into(got, folder.path(), saved, 0, 1); },
                ThrowsMessage<CheckpointError>(HasSubstr(" bytes; it was saved with 106")));
  }
  std::filesystem::remove(folder / "f");
  EXPECT_THROW(read_into(got, folder.path(), saved, 0, 1), IoError);
  EXPECT_EQ(got, "");
}

TEST(BlockFile, OverwritesNothing) {
  const TempFolder folder;
  write(folder.path(), "header", "data", 4);
  EXPECT_THROW(write(folder.path(), "header", "data", 4), IoError);
}

}  // namespace
}  // namespace fsdp::testing
