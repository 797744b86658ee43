// Times how fast one thread reads the batches of `fsdp train` from token files, and prints JSON lines.
//
// Usage: train_data_bench [--tokens 32000000 --length 128 --batch 2]
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/data/batch_reader.h"
#include "trainer/data/synthetic.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_file_writer.h"

namespace {

using namespace fsdp::data;
using Clock = std::chrono::steady_clock;

constexpr int32_t kVocabulary = 8192;
constexpr size_t kChunkTokens = 4096;
constexpr int kRounds = 5;

struct Settings {
  int64_t tokens = 32000000, length = 128, batch = 2;
};

// A folder that is deleted at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "train_data_bench.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make the folder " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// With `masked`, every other chunk does not count in the loss.
std::shared_ptr<const TokenFile> write_tokens(const std::string& path, const Settings& settings,
                                              bool masked) {
  const std::vector<int32_t> chunk = synthetic_tokens(kChunkTokens, kVocabulary, 1);
  TokenFileWriter writer(path, kVocabulary);
  for (bool counted = true; writer.size() < settings.tokens; counted = !masked || !counted)
    writer.add(chunk, counted);
  writer.sync();
  writer.commit();
  return TokenFile::open(path, TokenType::from_header, kVocabulary);
}

// Reads one epoch in shuffled order; returns seconds.
double read_epoch(const Dataset& dataset, const Order& order, const Share& share, uint64_t epoch,
                  int64_t& sum) {
  const auto start = Clock::now();
  for (uint64_t step = 0; step < order.steps_per_epoch(); ++step)
    for (const Batch& batch : read_step(dataset, order, share, order.step({epoch, step})))
      sum += batch.tokens.back();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void measure(const TemporaryFolder& folder, const Settings& settings, bool masked) {
  const std::string name = masked ? "tokens_with_mask" : "tokens";
  const Dataset dataset({write_tokens(folder.file(name + ".bin"), settings, masked)}, settings.length);
  const Order order(dataset.samples(), static_cast<uint64_t>(settings.batch), 42);
  const Share share{.batch_size = static_cast<uint64_t>(settings.batch)};
  std::vector<double> seconds;
  int64_t sum = 0;
  for (uint64_t epoch = 0; epoch < kRounds; ++epoch)
    seconds.push_back(read_epoch(dataset, order, share, epoch, sum));
  std::sort(seconds.begin(), seconds.end());
  const auto read = static_cast<double>(order.steps_per_epoch() * order.global_batch()) *
                    static_cast<double>(settings.length);
  const nlohmann::ordered_json line{{"bench", "train"},
                                    {"part", "data"},
                                    {"impl", name},
                                    {"length", settings.length},
                                    {"batch", settings.batch},
                                    {"tokens", static_cast<int64_t>(read)},
                                    {"seconds", seconds[kRounds / 2]},
                                    {"tokens_per_second", read / seconds[kRounds / 2]},
                                    {"sum", sum}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Times how fast one thread reads the batches of a training; prints JSON lines.");
  app.add_option("--tokens", settings.tokens, "of the file")->check(CLI::PositiveNumber);
  app.add_option("--length", settings.length, "tokens of a sequence")->check(CLI::PositiveNumber);
  app.add_option("--batch", settings.batch, "sequences per microbatch")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const TemporaryFolder folder;
    for (const bool masked : {false, true}) measure(folder, settings, masked);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_data_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
