#include <fsdp/error.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "trainer/data/error.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/texts.h"

namespace fsdp::data {

namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

// ".txt, .md or .jsonl".
std::string list_of(const Paths& suffixes) {
  std::string text;
  for (size_t i = 0; i < suffixes.size(); ++i)
    text += (i == 0 ? "" : i + 1 == suffixes.size() ? " or " : ", ") + suffixes[i];
  return text;
}

Paths files_in(const std::string& folder, const Paths& suffixes) {
  Paths files;
  std::error_code code;
  for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end; at.increment(code))
    if (at->is_regular_file() &&
        std::find(suffixes.begin(), suffixes.end(), at->path().extension()) != suffixes.end())
      files.push_back(at->path().string());
  if (code) throw IoError("read", folder, code.value());
  if (files.empty()) throw DataError(folder + ": the folder has no " + list_of(suffixes) + " file");
  std::sort(files.begin(), files.end());
  return files;
}

Paths matches_of(const std::string& pattern) {
  glob_t found{};
  const int code = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  Paths paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (code == GLOB_NOMATCH) throw DataError(pattern + ": no file matches this pattern");
  if (code != 0) throw IoError("search", pattern, 0);
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

std::vector<std::string> expand_paths(const std::vector<std::string>& paths,
                                      const std::vector<std::string>& suffixes) {
  Paths files;
  const auto add = [&](const std::string& path) {
    std::error_code code;
    if (!fs::is_directory(path, code)) return files.push_back(path);
    const Paths inside = files_in(path, suffixes);
    files.insert(files.end(), inside.begin(), inside.end());
  };
  for (const std::string& path : paths) {
    if (file_exists(path)) {
      add(path);
    } else if (path.find_first_of("*?[") != std::string::npos) {
      for (const std::string& match : matches_of(path)) add(match);
    } else {
      throw DataError((path.empty() ? "''" : path) + ": there is no such file or folder");
    }
  }
  return files;
}

}  // namespace fsdp::data
