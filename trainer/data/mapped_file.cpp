#include "trainer/data/mapped_file.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "trainer/data/error.h"

namespace fsdp::data {

namespace {

// Closed when it goes out of scope: a mapping needs no descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

bool file_exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const Descriptor fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0) throw IoError("open", path_, errno);
  if (!S_ISREG(info.st_mode))
    throw IoError("open", path_, 0, S_ISDIR(info.st_mode) ? "it is a folder" : "it is not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  device_ = info.st_dev;
  inode_ = info.st_ino;
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapped == MAP_FAILED) throw IoError("map", path_, errno);
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(other.device_),
      inode_(other.inode_) {}

void MappedFile::check_size() const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0 || info.st_dev != device_ || info.st_ino != inode_) return;
  if (static_cast<size_t>(info.st_size) >= size_) return;
  throw DataError(path_ + ":" + std::to_string(info.st_size) + ": the file ends here; it had " +
                  std::to_string(size_) +
                  " bytes when it was opened. Do not write to data that is trained on: write a " +
                  "new file and rename it");
}

}  // namespace fsdp::data
