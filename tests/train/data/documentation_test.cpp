// The built-in corpus: this project's pages, byte for byte.
#include "trainer/data/documentation.h"

#include <algorithm>
#include <filesystem>

#include "support.h"
#include "trainer/data/tokenizer.h"

namespace fsdp::data {

TEST(Documentation, HasThePagesAsTheyAre) {
  const std::filesystem::path root(FSDP_SOURCE_DIR);
  std::vector<std::string> expected;
  for (const auto& page : std::filesystem::directory_iterator(root / "docs"))
    if (page.path().extension() == ".md") expected.push_back("docs/" + page.path().filename().string());
  std::sort(expected.begin(), expected.end());
  expected.insert(expected.begin(), "README.md");
  std::vector<std::string> names;
  for (const DocumentationPage& page : documentation_pages()) {
    names.emplace_back(page.name);
    EXPECT_EQ(page.text, file_text((root / page.name).string())) << page.name;
  }
  EXPECT_EQ(names, expected);
}

TEST(Documentation, IsOneTextOfUtf8) {
  const std::string text = documentation_text();
  size_t bytes = documentation_pages().size() - 1;
  for (const DocumentationPage& page : documentation_pages()) bytes += page.text.size();
  EXPECT_EQ(text.size(), bytes);
  EXPECT_EQ(find_invalid_utf8(text), std::string::npos);
  EXPECT_THAT(text, StartsWith("# fsdp.cpp\n"));
}

}  // namespace fsdp::data
