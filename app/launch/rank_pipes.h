// A rank's stdout and stderr on their way through the launcher.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "app/launch/console.h"
#include "app/launch/fd.h"

namespace fsdp::launch {

// Reads both streams, writes the lines of those that are shown to the console after "[rank N] ", appends all
// of it to a log, and remembers the newest lines.
class RankPipes {
 public:
  struct Options {
    int rank = 0;
    bool show_out = true;
    bool show_err = true;
    int log = -1;  // a descriptor; -1: there is no log
  };

  RankPipes() = default;
  // Makes the pipes. Throws LaunchError.
  RankPipes(const Options& options, Console& console);

  bool exist() const { return console_ != nullptr; }
  // For the rank to write to.
  int write_end(Stream stream) const { return at(stream).write.get(); }
  // The rank has them: closes the write ends here.
  void hand_over();
  // Readable when there is output, or no more of it can come.
  int read_end(Stream stream) const { return at(stream).read.get(); }
  // Passes on what is there, without waiting. False: no more can come; the read end is to be closed.
  bool pump(Stream stream);
  // The rank has ended: passes on what it left, and closes the read ends.
  void finish();
  // At most `most`, as printable_line() makes them.
  std::vector<std::string> last_lines(size_t most) const;

 private:
  struct Pipe {
    Fd read;
    Fd write;
    std::string line;  // its beginning
  };

  const Pipe& at(Stream stream) const { return pipes_[static_cast<size_t>(stream)]; }
  Pipe& at(Stream stream) { return pipes_[static_cast<size_t>(stream)]; }
  bool shown(Stream stream) const { return stream == Stream::out ? options_.show_out : options_.show_err; }
  void take(Stream stream, const std::string& text);
  // Remembers the line, empties it, and returns it as it is shown.
  std::string end_line(std::string& line);

  Options options_;
  Console* console_ = nullptr;
  std::array<Pipe, 2> pipes_;
  std::deque<std::string> newest_;
};

}  // namespace fsdp::launch
