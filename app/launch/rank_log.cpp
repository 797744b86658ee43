#include "app/launch/rank_log.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace fsdp::launch {

namespace {

constexpr off_t kMostBytes = 16 * 1024;

}  // namespace

std::string printable_line(std::string line) {
  line.erase(line.find_last_not_of("\r\n") + 1);
  line.erase(0, line.find_last_of('\r') + 1);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == 127; }, '?');
  return line;
}

RankLog::RankLog(const std::string& folder, int rank, const std::string& title)
    : path_(folder + "/rank-" + std::to_string(rank) + ".log") {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw IoError("create the log folder", folder, failed.value());
  file_ = Fd(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (!file_.valid()) throw IoError("open the log", path_, errno);
  const std::string line = title.empty() ? "" : title + "\n";
  // A full disk must not stop the ranks.
  [[maybe_unused]] const ssize_t written = ::write(file_.get(), line.data(), line.size());
  struct stat found {};
  if (::fstat(file_.get(), &found) == 0) begin_ = found.st_size;
}

std::vector<std::string> RankLog::last_lines(size_t most) const {
  const Fd file(path_.empty() ? -1 : ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found {};
  if (!file.valid() || ::fstat(file.get(), &found) != 0 || found.st_size <= begin_) return {};
  const off_t from = std::max(begin_, found.st_size - kMostBytes);
  std::string text(static_cast<size_t>(found.st_size - from), '\0');
  const auto n = ::pread(file.get(), text.data(), text.size(), from);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = printable_line(text.substr(begin, end - begin));
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(most));
  return lines;
}

}  // namespace fsdp::launch
