// FileOps on the kernel's file system.
#include <dirent.h>
#include <fcntl.h>
#include <fsdp/error.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "base/fd.h"
#include "files/file_ops.h"

namespace fsdp::detail {

namespace {

// Repeats `call` until no signal interrupts it.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

void check(int result, const char* doing, const std::string& path) {
  if (result < 0) throw IoError(doing, path, errno);
}

Fd open_fd(const std::string& path, int flags, const char* doing) {
  const int fd = uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0644); });
  check(fd, doing, path);
  return Fd(fd);
}

// The disk starts to write a file whenever this much of it is new. By default the kernel starts when the file
// is synced.
constexpr int64_t kWriteBehindBytes = int64_t{8} << 20;

constexpr int64_t kReadAheadBytes = int64_t{16} << 20;
// The most that the kernel reads for one advice is a limit of the disk; of the rest it says nothing.
constexpr int64_t kAdviceBytes = int64_t{1} << 20;

class PosixFile final : public OpenFile {
 public:
  PosixFile(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  // The size grows with the written bytes: reserved space that is not used is no part of the file.
  void reserve(int64_t bytes) override {
    const int result = uninterrupted([&] { return ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, bytes); });
    if (result < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
      throw IoError("set aside " + std::to_string(bytes) + " bytes for", path_, errno);
  }

  void write(std::span<const std::byte> bytes, int64_t offset) override {
    unstarted_ += static_cast<int64_t>(bytes.size());
    while (!bytes.empty()) {
      const ssize_t n =
          uninterrupted([&] { return ::pwrite(fd_.get(), bytes.data(), bytes.size(), offset); });
      if (n < 0) throw IoError("write", path_, errno);
      bytes = bytes.subspan(static_cast<size_t>(n));
      offset += n;
    }
    if (unstarted_ < kWriteBehindBytes) return;
    (void)::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);  // sync() reports errors
    unstarted_ = 0;
  }

  void read(std::span<std::byte> bytes, int64_t offset) const override {
    read_ahead(offset, offset + static_cast<int64_t>(bytes.size()));
    while (!bytes.empty()) {
      const ssize_t n = uninterrupted([&] { return ::pread(fd_.get(), bytes.data(), bytes.size(), offset); });
      if (n < 0) throw IoError("read", path_, errno);
      if (n == 0)
        throw IoError("read", path_, 0,
                      "it ends at byte " + std::to_string(offset) + ", " + std::to_string(bytes.size()) +
                          " bytes too early");
      bytes = bytes.subspan(static_cast<size_t>(n));
      offset += n;
    }
  }

  int64_t size() const override {
    struct stat status {};
    check(::fstat(fd_.get(), &status), "look at", path_);
    return status.st_size;
  }

  void sync() override {
    check(uninterrupted([&] { return ::fsync(fd_.get()); }), "sync", path_);
  }

  // On network file systems an error here may be the first sign that a write was lost.
  void close() override {
    if (!fd_.valid()) return;
    const int result = ::close(fd_.release());
    if (result < 0 && errno != EINTR) throw IoError("close", path_, errno);
  }

 private:
  // The disk reads ahead while bytes are used. By default the kernel reads only 128 KiB ahead. Small reads
  // are random access, for which this does nothing.
  void read_ahead(int64_t begin, int64_t end) const {
    if (end - begin < kReadAheadBytes / 64) return;
    if (begin < asked_ - kReadAheadBytes || end > asked_) asked_ = end;
    for (; asked_ < end + kReadAheadBytes; asked_ += kAdviceBytes)
      (void)::posix_fadvise(fd_.get(), asked_, kAdviceBytes, POSIX_FADV_WILLNEED);
  }

  Fd fd_;
  std::string path_;
  mutable int64_t asked_ = 0;  // read-ahead was requested up to here
  int64_t unstarted_ = 0;      // bytes written since the last start of a write
};

std::string identity_of(const struct stat& status) {
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

// Note [Locks and forks]
// A flock() belongs to the open file, and a forked child shares the open files of its parent: a data loader's
// process that outlives the run would keep the lock, and the next run would be refused. So all locks are in a
// list, and a child closes those it inherits before fork() returns in it. The parent's lock stays. Programs
// that are started by exec have none: descriptors are close-on-exec.
//
// A lock also keeps the folder of its file open, so neither inode is reused for another one meanwhile.
class FileLock {
 public:
  FileLock(Fd file, Fd folder) : file_(std::move(file)), folder_(std::move(folder)) {
    [[maybe_unused]] static const int once = ::pthread_atfork(&before_fork, &in_parent, &in_child);
    const std::lock_guard guard(mutex);
    next_ = std::exchange(first, this);
  }
  ~FileLock() {
    const std::lock_guard guard(mutex);
    FileLock** link = &first;
    while (*link != this) link = &(*link)->next_;
    *link = next_;
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  static void before_fork() { mutex.lock(); }
  static void in_parent() { mutex.unlock(); }
  static void in_child() {
    for (FileLock* lock = first; lock != nullptr; lock = lock->next_) {
      lock->file_ = Fd();
      lock->folder_ = Fd();
    }
    mutex.unlock();
  }

  static std::mutex mutex;  // guards the list
  static FileLock* first;

  Fd file_, folder_;
  FileLock* next_ = nullptr;
};

constinit std::mutex FileLock::mutex;
constinit FileLock* FileLock::first = nullptr;

class PosixFiles final : public FileOps {
 public:
  FilePtr create(const std::string& path) override {
    return std::make_unique<PosixFile>(open_fd(path, O_WRONLY | O_CREAT | O_EXCL, "create"), path);
  }

  // Not blocking: opening a pipe of that name must not block before it is refused.
  FilePtr open(const std::string& path) const override {
    Fd fd = open_fd(path, O_RDONLY | O_NONBLOCK, "open");
    struct stat status {};
    check(::fstat(fd.get(), &status), "look at", path);
    if (!S_ISREG(status.st_mode)) throw IoError("open", path, 0, "it is not a regular file");
    return std::make_unique<PosixFile>(std::move(fd), path);
  }

  void make_folders(const std::string& path) override {
    for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1))
      make_missing(path.substr(0, end));
    make_missing(path);
  }

  void make_folder(const std::string& path) override {
    check(::mkdir(path.c_str(), 0755), "make folder", path);
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) < 0) throw IoError("rename to " + to, from, errno);
  }

  void sync_folder(const std::string& path) override {
    const Fd fd = open_fd(path, O_RDONLY | O_DIRECTORY, "open folder");
    const int result = uninterrupted([&] { return ::fsync(fd.get()); });
    if (result < 0 && errno != EINVAL)
      throw IoError("sync folder", path, errno);  // EINVAL: not supported here
  }

  void remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) < 0 && errno != ENOENT) throw IoError("remove", path, errno);
  }

  void remove_folder(const std::string& path) override {
    if (::rmdir(path.c_str()) < 0 && errno != ENOENT) throw IoError("remove folder", path, errno);
  }

  std::vector<std::string> list(const std::string& path) const override {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), &::closedir);
    if (!folder) throw IoError("list", path, errno);
    std::vector<std::string> names;
    const auto next = [&] {
      errno = 0;
      return ::readdir(folder.get());
    };
    while (const dirent* entry = next()) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    if (errno != 0) throw IoError("list", path, errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  bool exists(const std::string& path) const override { return mode(path, &::lstat) != 0; }
  bool is_folder(const std::string& path) const override { return S_ISDIR(mode(path, &::stat)); }
  bool is_link(const std::string& path) const override { return S_ISLNK(mode(path, &::lstat)); }

  std::string identity(const std::string& path) const override {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) return identity_of(status);
    if (errno == ENOENT || errno == ENOTDIR) return "";
    throw IoError("look at", path, errno);
  }

  std::shared_ptr<void> lock(const std::string& path) override {
    const size_t slash = path.find_last_of('/');
    const std::string above = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
    for (;;) {
      Fd folder = open_fd(above, O_RDONLY | O_DIRECTORY, "open folder");
      Fd file = open_fd(path, O_RDWR | O_CREAT, "open");
      if (uninterrupted([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) < 0) {
        if (errno == EWOULDBLOCK) return nullptr;
        // Some file systems have no locks (Lustre without the option flock, NFS without its lock manager).
        if (errno != ENOSYS && errno != EOPNOTSUPP && errno != ENOLCK) throw IoError("lock", path, errno);
      }
      struct stat status {};
      check(::fstat(file.get(), &status), "look at", path);
      // The file may have been deleted before it was locked: then the next process would lock another file.
      if (identity(path) == identity_of(status))
        return std::make_shared<FileLock>(std::move(file), std::move(folder));
    }
  }

 private:
  static void make_missing(const std::string& path) {
    if (::mkdir(path.c_str(), 0755) < 0 && errno != EEXIST) throw IoError("make folder", path, errno);
  }
  using Look = int (*)(const char*, struct stat*);
  static mode_t mode(const std::string& path, Look look) {
    struct stat status {};
    if (look(path.c_str(), &status) == 0) return status.st_mode;
    if (errno == ENOENT || errno == ENOTDIR) return 0;
    throw IoError("look at", path, errno);
  }
};

}  // namespace

FileOps& posix_files() {
  static PosixFiles files;
  return files;
}

}  // namespace fsdp::detail
