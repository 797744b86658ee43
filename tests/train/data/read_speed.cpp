// read_speed [SECONDS]: tokens per second that one BatchReader gives, which reads on one thread.
//
// Reads a token file of 256 MiB that it writes below TMPDIR: sequences of 1024 tokens in random order, 32 per
// step. The vocabulary is checked, as in training.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "support/temp_folder.h"
#include "trainer/data/batch_reader.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_file_writer.h"

namespace {

using namespace fsdp::data;

constexpr int32_t kVocabulary = 50257;
constexpr int64_t kTokens = int64_t{128} << 20, kLength = 1024;
constexpr uint64_t kBatch = 32;

std::shared_ptr<const TokenFile> write_tokens(const std::string& path) {
  TokenFileWriter writer(path, kVocabulary);
  std::vector<int32_t> block(1 << 20);
  for (int64_t at = 0; at < kTokens; at += std::ssize(block)) {
    for (size_t i = 0; i < block.size(); ++i)
      block[i] = static_cast<int32_t>((static_cast<uint64_t>(at) + i) * 7919 % kVocabulary);
    writer.add(block, true);
  }
  writer.sync();
  writer.commit();
  return TokenFile::open(path, TokenType::from_header, kVocabulary);
}

}  // namespace

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  try {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
    const fsdp::testing::TempFolder folder;
    const auto dataset = std::make_shared<Dataset>(
        std::vector<std::shared_ptr<const TokenSource>>{write_tokens(folder / "tokens.bin")}, kLength);
    BatchReader reader(dataset, Order(dataset->samples(), kBatch, 1), {.batch_size = kBatch});
    const Clock::time_point begin = Clock::now();
    uint64_t step = 0;
    double elapsed = 0;
    for (; elapsed < seconds; elapsed = std::chrono::duration<double>(Clock::now() - begin).count())
      reader.read(step++);
    const auto tokens = static_cast<double>(step * kBatch * static_cast<uint64_t>(kLength));
    std::printf("%.0f million tokens per second (%llu steps of %llu sequences of %lld tokens)\n",
                tokens / elapsed / 1e6, static_cast<unsigned long long>(step),
                static_cast<unsigned long long>(kBatch), static_cast<long long>(kLength));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "read_speed: %s\n", error.what());
    return 1;
  }
  return 0;
}
