#include "app/launch/rank_pipes.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "app/launch/job.h"
#include "app/launch/rank_log.h"

namespace fsdp::launch {

namespace {

constexpr size_t kNewest = 64;
constexpr size_t kLongestLine = 64 * 1024;

void append(int log, const std::string& text) {
  for (size_t done = 0; log >= 0 && done < text.size();) {
    const ssize_t n = ::write(log, text.data() + done, text.size() - done);
    if (n > 0)
      done += static_cast<size_t>(n);
    else if (errno != EINTR)
      return;  // a full disk must not stop the ranks
  }
}

}  // namespace

RankPipes::RankPipes(const Options& options, Console& console) : options_(options), console_(&console) {
  for (Pipe& pipe : pipes_) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw LaunchError(std::string("cannot make a pipe for a rank's output: ") + std::strerror(errno) +
                        ". Open files may be limited (ulimit -n)");
    pipe.read = Fd(ends[0]);
    pipe.write = Fd(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
}

void RankPipes::hand_over() {
  for (Pipe& pipe : pipes_) pipe.write.close();
}

bool RankPipes::pump(Stream stream) {
  std::string text(64 * 1024, '\0');
  for (;;) {
    const ssize_t n = ::read(read_end(stream), text.data(), text.size());
    if (n > 0) {
      take(stream, text.substr(0, static_cast<size_t>(n)));
      if (static_cast<size_t>(n) < text.size()) return true;
    } else if (n == 0 || errno != EINTR) {
      return n < 0 && errno == EAGAIN;
    }
  }
}

void RankPipes::finish() {
  for (const Stream stream : {Stream::out, Stream::err}) {
    if (!at(stream).read.valid()) continue;
    pump(stream);
    if (!at(stream).line.empty()) take(stream, "\n");
    at(stream).read.close();
  }
}

std::vector<std::string> RankPipes::last_lines(size_t most) const {
  const size_t n = std::min(most, newest_.size());
  return {newest_.end() - static_cast<std::ptrdiff_t>(n), newest_.end()};
}

void RankPipes::take(Stream stream, const std::string& text) {
  append(options_.log, text);
  std::string lines;
  std::string& line = at(stream).line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    line += text.substr(begin, end - begin);
    if (end == std::string::npos && line.size() < kLongestLine) break;
    lines += end_line(line);
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  if (shown(stream) && !lines.empty()) console_->write(stream, lines);
}

std::string RankPipes::end_line(std::string& line) {
  std::string printable = printable_line(line);
  if (!printable.empty()) newest_.push_back(std::move(printable));
  if (newest_.size() > kNewest) newest_.pop_front();
  return "[rank " + std::to_string(options_.rank) + "] " + std::exchange(line, "") + "\n";
}

}  // namespace fsdp::launch
