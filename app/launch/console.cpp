#include "app/launch/console.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string_view>

namespace fsdp::launch {

namespace {

constexpr size_t kMostHeld = size_t{1} << 20;
constexpr int kPatience = 1000;  // milliseconds

int fd_of(Stream stream) { return stream == Stream::out ? STDOUT_FILENO : STDERR_FILENO; }

// Writes what fits now, so that it never waits: a pipe that is writable takes so much. Returns what is left;
// nothing is if it cannot be written at all.
std::string_view write_part(int fd, std::string_view text) {
  const ssize_t n = ::write(fd, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
  if (n > 0) return text.substr(static_cast<size_t>(n));
  return n < 0 && (errno == EAGAIN || errno == EINTR) ? text : std::string_view{};
}

bool is_writable(int fd) {
  pollfd one{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&one, 1, kPatience) == 1;
}

}  // namespace

void write_soon(Stream stream, const std::string& text) {
  for (std::string_view left = text; !left.empty() && is_writable(fd_of(stream));)
    left = write_part(fd_of(stream), left);
}

void Console::write_all(Stream stream, std::string_view text) {
  while (!text.empty()) {
    if (hurried_) {
      if (!is_writable(fd_of(stream))) return;
    } else {
      std::vector<pollfd> wait{{.fd = fd_of(stream), .events = POLLOUT, .revents = 0}};
      for (const int fd : wakers_) wait.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      ::poll(wait.data(), wait.size(), -1);
      hurried_ = wait[0].revents == 0 &&
                 std::any_of(wait.begin(), wait.end(), [](const pollfd& one) { return one.revents != 0; });
      if (wait[0].revents == 0) continue;
    }
    text = write_part(fd_of(stream), text);
  }
}

void Console::write(Stream stream, const std::string& text) {
  if (stream == Stream::out) return write_all(Stream::out, text);
  if (!holding_) return write_all(Stream::err, text);
  if (full_) return;
  full_ = held_.size() + text.size() > kMostHeld;
  held_ += full_ ? "(the rest of the ranks' stderr is left out here)\n" : text;
}

}  // namespace fsdp::launch
