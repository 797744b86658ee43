#include "app/launch/console.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace fsdp::launch {

namespace {

constexpr size_t kMostHeld = size_t{1} << 20;
constexpr size_t kCrowd = size_t{1} << 18;
constexpr int kPatience = 1000;  // milliseconds
constexpr std::array kStreams{Stream::out, Stream::err};

int fd_of(Stream stream) { return stream == Stream::out ? STDOUT_FILENO : STDERR_FILENO; }

// The beginning that a pipe takes as a whole if it is writable: whole lines if one fits.
std::string_view first_part(std::string_view text) {
  if (text.size() <= PIPE_BUF) return text;
  const size_t end = text.substr(0, PIPE_BUF).rfind('\n');
  return text.substr(0, end == std::string_view::npos ? PIPE_BUF : end + 1);
}

// Writes what fits now. Returns what is left; nothing is if it cannot be written at all.
std::string_view write_part(int fd, std::string_view text) {
  const std::string_view part = first_part(text);
  const ssize_t n = ::write(fd, part.data(), part.size());
  if (n > 0) return text.substr(static_cast<size_t>(n));
  return n < 0 && (errno == EAGAIN || errno == EINTR) ? text : std::string_view{};
}

bool is_writable(int fd, int milliseconds) {
  pollfd one{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&one, 1, milliseconds) == 1;
}

}  // namespace

void write_soon(Stream stream, const std::string& text) {
  for (std::string_view left = text; !left.empty() && is_writable(fd_of(stream), kPatience);)
    left = write_part(fd_of(stream), left);
}

void Console::write(Stream stream, const std::string& text) {
  if (stream == Stream::err && holding_) {
    if (full_) return;
    full_ = held_.size() + text.size() > kMostHeld;
    held_ += full_ ? "(the rest of the ranks' stderr is left out here)\n" : text;
    return;
  }
  if (!hurries_ || !is_full(stream)) waiting_[static_cast<size_t>(stream)].text += text;
  pump();
}

void Console::pump() {
  for (const Stream stream : kStreams) {
    Waiting& waiting = waiting_[static_cast<size_t>(stream)];
    while (!waiting.left().empty() && is_writable(fd_of(stream), 0))
      waiting.written = waiting.text.size() - write_part(fd_of(stream), waiting.left()).size();
    if (waiting.left().empty() || waiting.written > kCrowd) {
      waiting.text.erase(0, waiting.written);
      waiting.written = 0;
    }
  }
}

int Console::waits_for(Stream stream) const {
  return waiting_[static_cast<size_t>(stream)].left().empty() ? -1 : fd_of(stream);
}

bool Console::is_full(Stream stream) const {
  return waiting_[static_cast<size_t>(stream)].left().size() > kCrowd;
}

void Console::finish(const std::vector<int>& wakers) {
  for (pump(); waits_for(Stream::out) >= 0 || waits_for(Stream::err) >= 0; pump()) {
    std::vector<pollfd> wait;
    for (const Stream stream : kStreams)
      wait.push_back({.fd = waits_for(stream), .events = POLLOUT, .revents = 0});
    if (!hurries_)
      for (const int fd : wakers) wait.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    const int ready = ::poll(wait.data(), wait.size(), hurries_ ? kPatience : -1);
    if (ready == 0) return;
    hurries_ = hurries_ || std::any_of(wait.begin() + kStreams.size(), wait.end(),
                                       [](const pollfd& one) { return one.revents != 0; });
  }
}

}  // namespace fsdp::launch
