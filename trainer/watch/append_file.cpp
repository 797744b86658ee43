#include "trainer/watch/append_file.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace fsdp::watch {

AppendFile::AppendFile(std::string path, Existing existing) : path_(std::move(path)) {
  const int exclusive = existing == Existing::refuse ? O_EXCL : 0;
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | exclusive, 0666);
  if (file_ < 0) throw IoError("open", path_, errno);
}

AppendFile::~AppendFile() { ::close(file_); }

void AppendFile::append(const std::string& bytes) {
  const off_t before = ::lseek(file_, 0, SEEK_END);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(file_, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int code = errno;
      // Part of the record may be there. If it cannot be cut off either, readers skip it.
      if (before >= 0 && ::ftruncate(file_, before) != 0) throw IoError("write", path_, code);
      throw IoError("write", path_, code);
    }
    done += static_cast<size_t>(written);
  }
}

void AppendFile::cut_torn_line() {
  const off_t size = ::lseek(file_, 0, SEEK_END);
  if (size < 0) throw IoError("read", path_, errno);
  std::array<char, 4096> block{};
  off_t keep = 0;
  for (off_t end = size; end > 0 && keep == 0;) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(block.size()));
    const auto wanted = static_cast<size_t>(end - begin);
    if (::pread(file_, block.data(), wanted, begin) != static_cast<ssize_t>(wanted))
      throw IoError("read", path_, errno);
    for (size_t at = wanted; at > 0 && keep == 0; --at)
      if (block[at - 1] == '\n') keep = begin + static_cast<off_t>(at);
    end = begin;
  }
  if (keep != size && ::ftruncate(file_, keep) != 0) throw IoError("shorten", path_, errno);
}

}  // namespace fsdp::watch
