// Prints the results of the command: tables for people, JSON for programs, progress while they wait.
#pragma once

#include <fsdp/checkpoint_files.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::app {

using Json = nlohmann::ordered_json;

// Rows of text in columns as wide as they need to be.
class Table {
 public:
  // The first row, which may be empty. Columns listed in `right` are aligned at their end.
  explicit Table(std::vector<std::string> head = {}, std::vector<size_t> right = {});

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool has_rows() const { return !rows_.empty(); }
  std::string text() const;

 private:
  std::vector<std::string> head_;
  std::vector<size_t> right_;
  std::vector<std::vector<std::string>> rows_;
};

// "1.5 GiB", "12 bytes".
std::string size_text(int64_t bytes);
// "1,048,576".
std::string count_text(int64_t count);
// "1 file", "2 files".
std::string counted(int64_t count, const std::string& what);
// "[768, 2304]".
std::string shape_text(const std::vector<int64_t>& shape);
// `text` without the characters that move a terminal's cursor or change its colours: names in files may hold
// any.
std::string printable(std::string text);

// To stdout. Throws IoError where it cannot be written.
void print(const std::string& text);
void print(const Json& json);

// A line on stderr that says how far `doing` is, where a person is watching; else nothing.
ByteProgress show_progress(const std::string& doing);

}  // namespace fsdp::app
