// The inputs that fuzzers found worth keeping, without a fuzzer.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "fuzz_files/parsers.h"

namespace fsdp::testing {
namespace {

void run_all(const std::string& name, const std::function<void(std::string_view)>& parse) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(FSDP_TESTS_DIR) + "/fuzz_files/corpus/" + name)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_NO_THROW(parse(input)) << entry.path();
    ++count;
  }
  EXPECT_GT(count, 10);
}

TEST(FuzzCorpus, SafetensorsAreSoundOrRefused) { run_all("safetensors", &fuzz_safetensors); }
TEST(FuzzCorpus, ManifestsAreSoundOrRefused) { run_all("manifest", &fuzz_manifest); }

}  // namespace
}  // namespace fsdp::testing
