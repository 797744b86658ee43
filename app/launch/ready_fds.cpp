#include "app/launch/ready_fds.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "app/launch/job.h"

namespace fsdp::launch {

namespace {

[[noreturn]] void refuse() {
  throw LaunchError(std::string("cannot watch the ranks: ") + std::strerror(errno));
}

}  // namespace

ReadyFds::ReadyFds() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_.valid()) refuse();
}

void ReadyFds::add(int fd, int tag) const {
  if (!try_add(fd, tag, EPOLLIN)) refuse();
}

bool ReadyFds::add_writer(int fd, int tag) const { return try_add(fd, tag, EPOLLOUT); }

void ReadyFds::remove(int fd) const { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::vector<int> ReadyFds::wait(std::optional<Time> until) const {
  int milliseconds = -1;
  if (until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Time::clock::now()).count();
    milliseconds = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
  }
  std::array<epoll_event, 64> events{};
  const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
  std::vector<int> tags;
  for (int i = 0; i < n; ++i) tags.push_back(events[static_cast<size_t>(i)].data.fd);
  return tags;
}

bool ReadyFds::try_add(int fd, int tag, uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = tag;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace fsdp::launch
