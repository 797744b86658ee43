#include "app/launch/console.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace fsdp::launch {

namespace {

constexpr size_t kMostHeld = size_t{1} << 20;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
      ::poll(&writable, 1, -1);
    } else if (n == 0 || errno != EINTR) {
      return;
    }
  }
}

}  // namespace

void Console::write(Stream stream, const std::string& text) {
  if (stream == Stream::out) return write_all(STDOUT_FILENO, text);
  if (!holding_) return write_all(STDERR_FILENO, text);
  if (full_) return;
  full_ = held_.size() + text.size() > kMostHeld;
  held_ += full_ ? "(the rest of the ranks' stderr is left out here)\n" : text;
}

}  // namespace fsdp::launch
