// The disk that loses power, by which crashes are tested: it keeps what was synced and may lose the rest.
#include "support/sim_files.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <cerrno>
#include <functional>
#include <set>

namespace fsdp::testing {
namespace {

using detail::FilePtr;
using detail::read_text;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// What `ask` says after each of many losses of power.
template <class Answer>
std::set<Answer> after_losses(const SimFiles& disk, const std::function<Answer(const SimFiles&)>& ask) {
  std::set<Answer> answers;
  for (unsigned seed = 0; seed < 300; ++seed) {
    SimFiles copy = disk;
    copy.lose_power(seed);
    answers.insert(ask(copy));
  }
  return answers;
}

void write(SimFiles& disk, const std::string& path, const std::string& text, bool sync) {
  const FilePtr file = disk.create(path);
  file->write(std::as_bytes(std::span(text)), 0);
  if (sync) file->sync();
}

std::set<std::string> lists(const SimFiles& disk) {
  return after_losses<std::string>(disk, [](const SimFiles& d) {
    std::string names;
    for (const std::string& name : d.list("/")) names += name + " ";
    return names;
  });
}

TEST(SimFiles, KeepsWhatWasSynced) {
  SimFiles disk;
  write(disk, "/f", "text", true);
  disk.sync_folder("/");
  EXPECT_THAT(after_losses<std::string>(disk, [](const SimFiles& d) { return read_text(d, "/f", 10); }),
              ElementsAre("text"));
}

TEST(SimFiles, MayLoseNamesThatWereNotSynced) {
  SimFiles disk;
  write(disk, "/a", "a", true);
  write(disk, "/b", "b", true);
  EXPECT_THAT(lists(disk), UnorderedElementsAre("", "a ", "b ", "a b "));
  disk.sync_folder("/");
  disk.remove_file("/a");
  EXPECT_THAT(lists(disk), UnorderedElementsAre("a b ", "b "));
}

TEST(SimFiles, ARenameIsWhole) {
  SimFiles disk;
  write(disk, "/a", "a", true);
  disk.sync_folder("/");
  disk.rename("/a", "/b");
  EXPECT_THAT(lists(disk), UnorderedElementsAre("a ", "b "));
}

TEST(SimFiles, MayTearDataThatWereNotSynced) {
  SimFiles disk;
  write(disk, "/f", std::string(2000, 'x'), false);
  disk.sync_folder("/");
  const auto found =
      after_losses<std::string>(disk, [](const SimFiles& d) { return read_text(d, "/f", 2000); });
  EXPECT_THAT(found, Contains(""));
  EXPECT_THAT(found, Contains(std::string(2000, 'x')));
  EXPECT_THAT(found, Contains(std::string(512, '\0') + std::string(1488, 'x')));
  EXPECT_GT(found.size(), 50U);
}

TEST(SimFiles, AFolderThatVanishesTakesItsFilesAlong) {
  SimFiles disk;
  disk.make_folder("/d");
  write(disk, "/d/f", "text", true);
  disk.sync_folder("/d");
  EXPECT_THAT(after_losses<size_t>(disk, [](const SimFiles& d) { return d.all().size(); }),
              UnorderedElementsAre(0U, 2U));
}

TEST(SimFiles, AnswersAsAFileSystemDoes) {
  SimFiles disk;
  disk.make_folders("/a/b");
  write(disk, "/a/f", "text", false);
  EXPECT_TRUE(disk.is_folder("/"));
  EXPECT_TRUE(disk.is_folder("."));
  EXPECT_FALSE(disk.is_folder("/a/f"));
  EXPECT_FALSE(disk.exists("/a/f/g"));
  EXPECT_THAT(disk.list("a"), ElementsAre("b", "f"));
  const auto code_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const IoError& error) {
      return error.code();
    }
    return -1;
  };
  EXPECT_EQ(code_of([&] { disk.create("/a/f"); }), EEXIST);
  EXPECT_EQ(code_of([&] { disk.create("/no/f"); }), ENOENT);
  EXPECT_EQ(code_of([&] { disk.open("/a/no"); }), ENOENT);
  EXPECT_EQ(code_of([&] { disk.open("/a"); }), 0);
  EXPECT_EQ(code_of([&] { disk.remove_folder("/a"); }), ENOTEMPTY);
  EXPECT_EQ(code_of([&] { disk.make_folder("/a"); }), EEXIST);
  EXPECT_THROW(disk.open("/a/../f"), std::logic_error);
  const auto held = disk.lock("/lock");
  EXPECT_EQ(disk.lock("/lock"), nullptr);
}

}  // namespace
}  // namespace fsdp::testing
