#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "app/launch/fd.h"
#include "trainer/doctor/machine.h"
#include "trainer/watch/text.h"

namespace fsdp::doctor {

namespace {

namespace fs = std::filesystem;

// The folder, or the first folder above it that is there.
fs::path existing(const std::string& folder) {
  std::error_code ignored;
  fs::path path = fs::absolute(folder, ignored).lexically_normal();
  while (!fs::is_directory(path, ignored) && path.has_parent_path() && path != path.root_path())
    path = path.parent_path();
  return path;
}

std::string kind_of(const std::string& folder) {
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0) return "";
  switch (static_cast<uint64_t>(info.f_type)) {
    case 0x6969:
      return "NFS";
    case 0x01021994:
      return "tmpfs: in memory";
    case 0x0BD00BD0:
      return "Lustre";
    case 0x794c7630:
      return "overlay";
    case 0xFF534D42:
    case 0xFE534D42:
      return "SMB";
    default:
      return "";
  }
}

// Bytes per second of a file that is written and synced; 0: it failed, and errno says why.
double write_speed(const launch::Fd& file) {
  constexpr size_t kBlock = 1 << 20, kBlocks = 32;
  const std::vector<char> block(kBlock, 'x');
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < kBlocks; ++i)
    if (::write(file.get(), block.data(), kBlock) != static_cast<ssize_t>(kBlock)) return 0;
  if (::fsync(file.get()) != 0) return 0;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(kBlock * kBlocks) / seconds;
}

Finding cannot_write(Finding found, const std::string& folder, int code) {
  found.level = Level::problem;
  found.text += ": cannot be written to: " + std::string(std::strerror(code));
  found.advice = "Runs are kept in " + folder + ": name another folder by --run, or " +
                 (code == ENOSPC || code == EDQUOT ? "make room there" : "change its owner or mode");
  return found;
}

}  // namespace

Finding check_disk(const MachineOptions& options) {
  const std::string folder = existing(options.folder).string();
  Finding found{.subject = "disk", .text = folder};
  if (const std::string kind = kind_of(folder); !kind.empty()) found.text += " (" + kind + ")";
  std::string name = folder + "/.fsdp-doctor-XXXXXX";
  const launch::Fd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return cannot_write(found, folder, errno);
  ::unlink(name.c_str());
  const double speed = write_speed(file);
  if (speed == 0) return cannot_write(found, folder, errno);
  struct statvfs info {};
  ::statvfs(folder.c_str(), &info);
  const double left = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  found.text += ": " + watch::bytes_text(left) + " free, writes " + watch::bytes_text(speed) + "/s";
  constexpr double kLittleRoom = 1 << 30, kSlow = 20 << 20;
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    found.level = Level::warning;
    found.text += ", without locks";
    found.advice = "Two `fsdp train` in one folder are not noticed on this file system";
  }
  if (speed < kSlow) {
    found.level = Level::warning;
    found.advice = "Checkpoints take long: keep checkpoint.background, or name a faster disk by --run";
  }
  if (left < kLittleRoom) {
    found.level = Level::warning;
    found.advice =
        "A checkpoint has the weights and two moments of each, 12 bytes per parameter in fp32: make room, "
        "or set checkpoint.keep_last";
  }
  return found;
}

Findings check_machine(const MachineOptions& options) {
  Findings findings = {check_processors(options), check_memory(options), check_shared_memory(options)};
  for (Finding& one : check_limits(options)) findings.push_back(std::move(one));
  findings.push_back(check_clock(options));
  findings.push_back(check_disk(options));
  return findings;
}

}  // namespace fsdp::doctor
