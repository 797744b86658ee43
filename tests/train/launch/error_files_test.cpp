// What a failed rank says in its error file, and whom it blames.
#include "app/launch/error_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace fsdp::launch {
namespace {

TEST(ErrorFiles, ReadsTorchElasticsMessage) {
  const Message found = parse_message(
      R"({"message": {"message": "RuntimeError: no data", "extraInfo": {"timestamp": "1700000000"}}})", 2);
  EXPECT_EQ(found.text, "RuntimeError: no data");
  EXPECT_EQ(found.culprit, -1);
  EXPECT_EQ(parse_message(R"({"message": "no data"})", 2).text, "no data");
}

TEST(ErrorFiles, TextThatIsNotJsonIsTheMessage) {
  EXPECT_EQ(parse_message("  disk full\nat step 3 \n", 0).text, "disk full\nat step 3");
  EXPECT_EQ(parse_message("{\"message\": ", 0).text, "{\"message\":");
  EXPECT_EQ(parse_message("[1, 2]", 0).text, "[1, 2]");
  EXPECT_EQ(parse_message("", 0).text, "");
}

TEST(ErrorFiles, ReadsTheCulprit) {
  const char* text = R"({"message": {"message": "lost a peer", "extraInfo": {"culprit": 3}}})";
  EXPECT_EQ(parse_message(text, 1).culprit, 3);
  EXPECT_EQ(parse_message(text, 3).culprit, -1) << "no rank blames itself";
  EXPECT_EQ(parse_message(R"({"message": {"message": "x", "extraInfo": {"culprit": "3"}}})", 1).culprit, -1);
}

TEST(ErrorFiles, FindsTheBlamedRankInACommError) {
  EXPECT_EQ(blamed_rank("rank 1: all_reduce (f32, 12) failed after 3 ms: rank 0 (pid 7) died", 1), 0);
  EXPECT_EQ(blamed_rank("rank 1: all_gather failed after 30000 ms: rank 1 waits for rank 12", 1), 12);
  EXPECT_EQ(blamed_rank("rank 1: a failed after 3 ms: the disk is full", 1), -1);
  EXPECT_EQ(blamed_rank("rank 1: a failed after soon ms: rank 0 died", 1), -1);
  EXPECT_EQ(blamed_rank("3 of 4 ranks came within 99 ms; missing: rank 3. Start as many", 0), 3);
  EXPECT_EQ(blamed_rank("1 of 4 ranks came within 99 ms; missing: rank 1, 2, 3. Start as many", 0), 1);
  EXPECT_EQ(blamed_rank("rank 1 died", 0), -1) << "only the messages of CommError name a culprit";
  EXPECT_EQ(blamed_rank("x after 3 ms: crank 4 turned", 0), -1);
}

TEST(ErrorFiles, FolderLivesAsLongAsTheObject) {
  std::string folder;
  {
    const ErrorFiles files;
    folder = files.folder();
    EXPECT_EQ(files.read(0).text, "") << "no file: no message";
    std::ofstream(files.path(4)) << R"({"message": "out of data"})";
    EXPECT_EQ(files.read(4).text, "out of data");
    EXPECT_NE(files.path(4), files.path(5));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace fsdp::launch
