// Promise: a checkpoint of any format version there was loads, with the values it was saved with.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "files/manifest.h"
#include "files/run_folder.h"
#include "support/small_checkpoint.h"

namespace fsdp::testing {
namespace {

using detail::Json;
using detail::posix_files;

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (size_t at = 0; at < hex.size(); at += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
  return bytes;
}

TEST(OldFormats, LoadForEver) {
  const std::string corpus = std::string(FSDP_TESTS_DIR) + "/corpus";
  for (int version = 1; version <= detail::kFormatVersion; ++version) {
    const std::string run = corpus + "/checkpoint-v" + std::to_string(version);
    SCOPED_TRACE(run);
    std::ifstream text(run + "/values.json");
    ASSERT_TRUE(text) << "no checkpoint of this version is kept: see tests/corpus/README.md";
    const Json values = Json::parse(text);
    ASSERT_FALSE(values.empty());
    for (const auto& [name, tensors] : values.items()) {
      const SmallContents found = load_small(posix_files(), run + "/" + name);
      EXPECT_EQ(found.tensors.size(), tensors.size());
      for (const auto& [tensor, hex] : tensors.items())
        EXPECT_TRUE(found.tensors.at(tensor) == bytes_of(hex.get<std::string>())) << tensor;
      const std::string manifest =
          detail::read_text(posix_files(), run + "/" + name + "/manifest.json", 1 << 20);
      EXPECT_EQ(Json::parse(manifest).at("format"), version);
    }
    EXPECT_EQ(load_small(posix_files(), run).step, 7);
    EXPECT_EQ(detail::RunFolder(posix_files(), run).entries().size(), values.size());
  }
}

}  // namespace
}  // namespace fsdp::testing
