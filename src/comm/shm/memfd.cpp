#include "comm/shm/memfd.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fd.h"

namespace fsdp::detail {

namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error("shared memory: " + what + ": " + std::strerror(errno));
}

class Mapping final : public Segment {
 public:
  Mapping(int fd, size_t bytes) : size_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (data_ == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes");
  }
  ~Mapping() override { ::munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const override { return static_cast<char*>(data_); }
  size_t size() const override { return size_; }

 private:
  void* data_;
  size_t size_;
};

std::string inode_of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail("cannot look at a memory file");
  return std::to_string(info.st_ino);
}

}  // namespace

SegmentSource::Export MemfdSource::create(size_t bytes) {
  auto fd = std::make_shared<Fd>(::memfd_create("fsdp", MFD_CLOEXEC));
  if (!fd->valid()) fail("cannot create a memory file");
  if (::ftruncate(fd->get(), static_cast<off_t>(bytes)) != 0)
    fail("cannot size a memory file to " + std::to_string(bytes) + " bytes");
  auto segment = std::make_shared<Mapping>(fd->get(), bytes);
  const std::string ticket =
      std::to_string(::getpid()) + ":" + std::to_string(fd->get()) + ":" + inode_of(fd->get());
  return {.segment = std::move(segment), .ticket = ticket, .keep = std::move(fd)};
}

SegmentPtr MemfdSource::attach(const std::string& ticket, size_t bytes) {
  const size_t first = ticket.find(':');
  const size_t second = ticket.find(':', first + 1);
  const std::string path =
      "/proc/" + ticket.substr(0, first) + "/fd/" + ticket.substr(first + 1, second - first - 1);
  const Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid())
    fail("cannot open " + path + " of the rank that made it (it must still run, as the same user)");
  if (inode_of(fd.get()) != ticket.substr(second + 1))
    throw Error("shared memory: " + path +
                " is not the memory it was said to be; the rank that made it has ended");
  return std::make_shared<Mapping>(fd.get(), bytes);
}

}  // namespace fsdp::detail
