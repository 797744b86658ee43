// What tests of data share: files with given bytes, and the message of an error.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "support/temp_folder.h"
#include "trainer/data/error.h"

namespace fsdp::data {

using ::fsdp::testing::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

inline std::string write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class Word>
std::string bytes_of(const std::vector<Word>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(Word)};
}

// The message of the DataError that `call` throws; "no error" where it throws none.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace fsdp::data
