#include <fcntl.h>
#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "files/file_ops.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

using detail::FilePtr;
using detail::posix_files;
using detail::read_text;
using detail::remove_tree;
using detail::write_text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Call>
IoError error_of(Call call) {
  try {
    call();
  } catch (const IoError& error) {
    return error;
  }
  ADD_FAILURE() << "no IoError";
  return IoError("", "", 0);
}

// The most bytes a file of this process may have.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t most) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = most, .rlim_max = old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int) = nullptr;
};

bool is_cached(int fd, int64_t offset) {
  std::byte byte{};
  const iovec one{.iov_base = &byte, .iov_len = 1};
  return ::preadv2(fd, &one, 1, offset, RWF_NOWAIT) == 1;
}

// The disk is busy while what came first is used, however little it reads for one advice.
TEST(PosixFiles, AReadAsksForWhatComesNext) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const TempFolder folder;
  const std::string path = folder / "file";
  write_text(posix_files(), path, std::string(64 * kMiB, 'x'));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  if (is_cached(fd, 15 * kMiB)) {
    ::close(fd);
    GTEST_SKIP() << "a file system in memory";
  }
  const FilePtr file = posix_files().open(path);
  std::vector<std::byte> bytes(kMiB);
  file->read(bytes, 0);
  for (int tries = 0; tries < 100 && !is_cached(fd, 16 * kMiB); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(is_cached(fd, 8 * kMiB));
  EXPECT_TRUE(is_cached(fd, 16 * kMiB));
  EXPECT_FALSE(is_cached(fd, 60 * kMiB)) << "not the whole file";
  ::close(fd);
}

// From now on flock() fails in this process with `code`, as on a file system without locks.
void have_no_locks(int code) {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(code)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(steps), .filter = steps};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(100);
}

TEST(PosixFiles, AFileSystemWithoutLocksHasNone) {
  const TempFolder folder;
  for (const auto& [code, locked] : {std::pair{ENOLCK, 0}, {ENOSYS, 0}, {EOPNOTSUPP, 0}, {EBADF, 1}}) {
    const pid_t child = ::fork();
    if (child == 0) {
      have_no_locks(code);
      try {
        ::_exit(posix_files().lock(folder / "lock") ? 0 : 2);
      } catch (const IoError&) {
        ::_exit(1);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WEXITSTATUS(status) == 100) GTEST_SKIP() << "this kernel filters no system calls";
    EXPECT_EQ(WEXITSTATUS(status), locked) << std::strerror(code);
  }
}

TEST(PosixFiles, TextComesBack) {
  const TempFolder folder;
  for (const std::string& text : {std::string(), std::string("a\0b\n", 4), std::string(100000, 'x')}) {
    write_text(posix_files(), folder / "f", text);
    EXPECT_EQ(read_text(posix_files(), folder / "f", 100000), text);
    posix_files().remove_file(folder / "f");
  }
}

TEST(PosixFiles, WritesAndReadsAnywhere) {
  const TempFolder folder;
  const FilePtr out = posix_files().create(folder / "f");
  out->write(std::as_bytes(std::span("world", 5)), 6);
  out->write(std::as_bytes(std::span("hello ", 6)), 0);
  EXPECT_EQ(out->size(), 11);
  out->sync();
  out->close();
  out->close();
  std::string got(5, ' ');
  posix_files().open(folder / "f")->read(std::as_writable_bytes(std::span(got)), 6);
  EXPECT_EQ(got, "world");
}

TEST(PosixFiles, AFileThatIsShortSaysWhereItEnds) {
  const TempFolder folder;
  write_text(posix_files(), folder / "f", "12345");
  std::string got(5, ' ');
  const IoError error =
      error_of([&] { posix_files().open(folder / "f")->read(std::as_writable_bytes(std::span(got)), 2); });
  EXPECT_THAT(error.what(), HasSubstr("it ends at byte 5, 2 bytes too early"));
  EXPECT_EQ(error.path(), folder / "f");
}

TEST(PosixFiles, AFileThatIsTooLargeIsNotRead) {
  const TempFolder folder;
  write_text(posix_files(), folder / "f", "12345");
  EXPECT_THAT(error_of([&] { read_text(posix_files(), folder / "f", 4); }).what(), HasSubstr("at most 4"));
}

TEST(PosixFiles, CreateNeedsANewName) {
  const TempFolder folder;
  write_text(posix_files(), folder / "f", "1");
  EXPECT_EQ(error_of([&] { posix_files().create(folder / "f"); }).code(), EEXIST);
  EXPECT_EQ(error_of([&] { posix_files().create(folder / "no/f"); }).code(), ENOENT);
  ASSERT_EQ(::symlink("elsewhere", (folder / "link").c_str()), 0);
  EXPECT_EQ(error_of([&] { posix_files().create(folder / "link"); }).code(), EEXIST);
}

TEST(PosixFiles, APipeIsRefusedAtOnce) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0644), 0);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(error_of([&] { posix_files().open(folder / "pipe"); }).what(), HasSubstr("not a regular file"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_THAT(error_of([&] { posix_files().open("/dev/zero"); }).what(), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { posix_files().open(folder.path()); }).what(), HasSubstr("not a regular file"));
}

TEST(PosixFiles, AFullDiskIsAnErrorWithPathAndReason) {
  const TempFolder folder;
  const FileSizeLimit limit(1000);
  const IoError error = error_of([&] { write_text(posix_files(), folder / "f", std::string(1001, 'x')); });
  EXPECT_EQ(error.code(), EFBIG);
  EXPECT_EQ(error.path(), folder / "f");
  EXPECT_EQ(error.doing(), "write");
  EXPECT_THAT(error.what(), HasSubstr("cannot write " + folder.path() + "/f: File too large"));
}

// Writes 100 KiB on a disk that has 64.
TEST(PosixFiles, ADiskWithoutSpaceIsNoSpace) {
  const TempFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string mount = "mount -t tmpfs -o size=64k tmpfs " + folder.path() + " 2>/dev/null";
    if (std::system(mount.c_str()) != 0) ::_exit(77);
    int code = 0;
    try {
      write_text(posix_files(), folder / "f", std::string(100 << 10, 'x'));
    } catch (const IoError& error) {
      code = error.code();
    }
    if (std::system(("umount " + folder.path()).c_str()) != 0) ::_exit(1);
    ::_exit(code == ENOSPC ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no tmpfs can be mounted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(PosixFiles, AFolderThatCannotBeWrittenIsAnError) {
  const TempFolder folder;
  write_text(posix_files(), folder / "old", "1");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  const bool root = ::geteuid() == 0;  // to whom no mode applies
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  EXPECT_EQ(error_of([&] { posix_files().create(folder / "f"); }).code(), EACCES);
  EXPECT_EQ(error_of([&] { posix_files().make_folder(folder / "d"); }).code(), EACCES);
  EXPECT_EQ(error_of([&] { posix_files().make_folders(folder / "d/e"); }).code(), EACCES);
  EXPECT_EQ(error_of([&] { posix_files().rename(folder / "old", folder / "new"); }).code(), EACCES);
  EXPECT_EQ(error_of([&] { posix_files().remove_file(folder / "old"); }).code(), EACCES);
  EXPECT_EQ(error_of([&] { posix_files().lock(folder / ".lock"); }).code(), EACCES);
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ::chmod(folder.path().c_str(), 0755);
}

TEST(PosixFiles, FoldersAreMadeListedRenamedAndRemoved) {
  const TempFolder folder;
  detail::FileOps& files = posix_files();
  files.make_folders(folder / "a/b//c/");
  files.make_folders(folder / "a/b/c");
  EXPECT_EQ(error_of([&] { files.make_folder(folder / "a"); }).code(), EEXIST);
  for (const char* name : {"z", "y", "x"}) write_text(files, folder / "a/b" + "/" + name, name);
  EXPECT_THAT(files.list(folder / "a/b"), ElementsAre("c", "x", "y", "z"));
  files.sync_folder(folder / "a/b");
  files.rename(folder / "a/b", folder / "a/d");
  EXPECT_FALSE(files.exists(folder / "a/b"));
  EXPECT_TRUE(files.is_folder(folder / "a/d"));
  EXPECT_FALSE(files.is_folder(folder / "a/d/x"));
  files.rename(folder / "a/d/x", folder / "a/d/y");
  EXPECT_EQ(read_text(files, folder / "a/d/y", 10), "x");
  remove_tree(files, folder / "a");
  remove_tree(files, folder / "a");
  EXPECT_FALSE(files.exists(folder / "a"));
  EXPECT_EQ(error_of([&] { files.list(folder / "a"); }).code(), ENOENT);
  EXPECT_EQ(error_of([&] { files.sync_folder(folder / "a"); }).code(), ENOENT);
  EXPECT_EQ(error_of([&] { files.make_folders(""); }).code(), ENOENT);
}

TEST(PosixFiles, ALinkToAFolderIsAFolderButRemovedAsALink) {
  const TempFolder folder;
  detail::FileOps& files = posix_files();
  files.make_folders(folder / "real");
  write_text(files, folder / "real/f", "1");
  files.make_folders(folder / "tree");
  ASSERT_EQ(::symlink((folder / "real").c_str(), (folder / "tree/link").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", (folder / "tree/dangling").c_str()), 0);
  EXPECT_TRUE(files.is_folder(folder / "tree/link"));
  EXPECT_FALSE(files.is_folder(folder / "tree/dangling"));
  remove_tree(files, folder / "tree");
  EXPECT_FALSE(files.exists(folder / "tree"));
  EXPECT_EQ(read_text(files, folder / "real/f", 10), "1");
}

TEST(PosixFiles, ALockHasOneHolder) {
  const TempFolder folder;
  auto held = posix_files().lock(folder / ".lock");
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(posix_files().lock(folder / ".lock"), nullptr);
  held.reset();
  EXPECT_NE(posix_files().lock(folder / ".lock"), nullptr);
}

}  // namespace
}  // namespace fsdp::testing
