// docs/watching.md has every record of metrics.jsonl and every member, and no other.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <variant>

#include "trainer/watch/record_fields.h"

namespace fsdp::watch {
namespace {

using Names = std::set<std::string>;

struct Collect {
  Names& names;

  template <typename T>
  void operator()(const char* name, T& value) {
    if constexpr (std::is_same_v<T, StepTimes>)
      visit_fields(*this, value);
    else if constexpr (std::is_same_v<T, std::vector<UnitTraffic>> ||
                       std::is_same_v<T, std::vector<RankMemory>>)
      visit_fields(*this, value.emplace_back());
    names.insert(name);
  }
};

template <typename R>
Names members_of() {
  R record;
  Names names;
  Collect collect{names};
  visit_fields(collect, record);
  return names;
}

// The text below the heading of `kind`, up to the next heading.
std::string section_of(const std::string& page, const std::string& kind) {
  const size_t begin = page.find("### `" + kind + "`\n");
  if (begin == std::string::npos) return "";
  return page.substr(begin + 5 + kind.size(), page.find("\n##", begin + 3) - begin - 5 - kind.size());
}

Names words_in_quotes(const std::string& text) {
  const std::regex word("`([a-z_]+)`");
  Names words;
  for (std::sregex_iterator at(text.begin(), text.end(), word), end; at != end; ++at) words.insert((*at)[1]);
  return words;
}

// The members that rows of the table name: in the first cell, and in the second one of `times`.
Names documented(const std::string& section) {
  Names names;
  const std::regex row("\\n\\| (`[^|]*) \\|([^|]*)\\|");
  for (std::sregex_iterator at(section.begin(), section.end(), row), end; at != end; ++at) {
    names.merge(words_in_quotes((*at)[1]));
    if ((*at)[1] == "`times`") names.merge(words_in_quotes((*at)[2]));
  }
  return names;
}

template <size_t I = 0>
void check(const std::string& page) {
  if constexpr (I < std::variant_size_v<Record>) {
    const std::string section = section_of(page, kKinds[I]);
    Names expected = members_of<std::variant_alternative_t<I, Record>>(), found = documented(section);
    // Members whose value is a list are in the sentence above the table of its members.
    for (const char* list : {"units", "ranks"})
      if (section.find(std::string("`") + list + "` is a list") != std::string::npos) found.insert(list);
    // `step` and `steps` of these are in a sentence too.
    for (const std::string& word : words_in_quotes(section.substr(0, section.find("| member"))))
      if (word == "step" || word == "steps") found.insert(word);
    EXPECT_EQ(found, expected) << kKinds[I];
    check<I + 1>(page);
  }
}

TEST(RecordsDocs, ThePageHasEveryMember) {
  std::ifstream file(std::string(FSDP_SOURCE_DIR) + "/docs/watching.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(page.empty());
  check(page);
}

}  // namespace
}  // namespace fsdp::watch
