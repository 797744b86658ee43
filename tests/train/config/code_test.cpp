// The code and the schema have the same keys: every key is read where the schema says, and every key read is
// in it.
#include <regex>
#include <set>

#include "train/config/config_fixture.h"

namespace fsdp::config {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

// The source of the files below `folder`; comments do not count, nor files that begin with `without`.
std::string source(const std::string& folder, const std::string& without = "-") {
  std::string all;
  for (const auto& file : fs::recursive_directory_iterator(fs::path(FSDP_SOURCE_DIR) / folder)) {
    const fs::path& path = file.path();
    if ((path.extension() != ".cpp" && path.extension() != ".h") ||
        path.filename().string().starts_with(without))
      continue;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) all += line.substr(0, line.find("//")) + "\n";
  }
  return all;
}

bool has(const std::string& text, const std::string& word) {
  return text.find('"' + word + '"') != std::string::npos;
}

TEST(CodeAndSchema, TheWorkerReadsItsKeys) {
  const std::string worker = source("trainer"), shared = source("app/config", "schema_");
  const std::set<std::string> by_ranks{"distributed.num_nodes", "distributed.devices"};  // Settings::ranks()
  EXPECT_NE(worker.find("ranks()"), std::string::npos);
  std::vector<std::string> unread;
  for (const Key& key : schema())
    if (key.reader != Reader::front && !has(worker, key.path) && by_ranks.count(key.path) == 0)
      unread.push_back(key.path);
  EXPECT_THAT(unread, IsEmpty()) << "in the schema, with Reader::worker or both, but not read in trainer/";
}

TEST(CodeAndSchema, TheFrontReadsItsKeys) {
  const std::string front = source("app", "schema_");
  std::vector<std::string> unread;
  for (const Key& key : schema())
    if (key.reader != Reader::worker && !has(front, key.path) &&
        !(key.section() == kModelConfig && has(front, key.name())))
      unread.push_back(key.path);
  EXPECT_THAT(unread, IsEmpty()) << "in the schema, with Reader::front or both, but not read in app/";
}

TEST(CodeAndSchema, EveryKeyInTheCodeExists) {
  std::string sections;
  for (const auto* some : {&stage_sections(), &top_sections()})
    for (const std::string& section : *some) sections += section + "|";
  const std::regex literal("\"((?:" + sections + "model_config)\\.[a-z0-9_]+(?:\\.[a-z0-9_]+)?)\"");
  for (const std::string folder : {"trainer", "app"}) {
    const std::string text = source(folder, "schema_");
    std::set<std::string> unknown;
    int count = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), literal), end; at != end; ++at, ++count)
      if (find_key((*at)[1]) == nullptr && keys_below((*at)[1]).empty()) unknown.insert((*at)[1]);
    EXPECT_THAT(unknown, IsEmpty()) << "named in " << folder << "/, but not in the schema";
    EXPECT_GT(count, 20) << folder;
  }
}

}  // namespace
}  // namespace fsdp::config
