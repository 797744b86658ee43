// The log file of a rank, which the rank itself writes: no pipe can fill up or lose the last lines.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "app/launch/fd.h"

namespace fsdp::launch {

// A file that exists is kept, and what comes is appended.
class RankLog {
 public:
  RankLog() = default;
  // Makes `folder` if it does not exist, and appends the line `title`, if any. Throws IoError.
  RankLog(const std::string& folder, int rank, const std::string& title = "");

  const std::string& path() const { return path_; }  // empty: there is no log
  int fd() const { return file_.get(); }
  // The rank has it: closes it here.
  void hand_over() { file_.close(); }
  // The newest lines since the constructor, at most `most`, as printable_line().
  std::vector<std::string> last_lines(size_t most) const;

 private:
  std::string path_;
  Fd file_;
  off_t begin_ = 0;
};

// `line` as a terminal would show it: what follows its last carriage return, with '?' for characters that
// move the cursor or change colours.
std::string printable_line(std::string line);

}  // namespace fsdp::launch
