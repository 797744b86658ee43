#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "files/file_ops.h"

namespace fsdp::testing {

// The disk at a pace that tests can set, and with errors.
class SlowFiles final : public detail::FileOps {
 public:
  std::atomic<int> milliseconds{0};   // per file that is created
  std::atomic<int> fail_creates{-1};  // this many creates go well, then the disk is full

  detail::FilePtr create(const std::string& path) override {
    if (fail_creates >= 0 && fail_creates-- == 0) throw IoError("write", path, ENOSPC);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return real().create(path);
  }
  detail::FilePtr open(const std::string& path) const override { return real().open(path); }
  void make_folders(const std::string& path) override { real().make_folders(path); }
  void make_folder(const std::string& path) override { real().make_folder(path); }
  void rename(const std::string& from, const std::string& to) override { real().rename(from, to); }
  void sync_folder(const std::string& path) override { real().sync_folder(path); }
  void remove_file(const std::string& path) override { real().remove_file(path); }
  void remove_folder(const std::string& path) override { real().remove_folder(path); }
  std::vector<std::string> list(const std::string& path) const override { return real().list(path); }
  bool exists(const std::string& path) const override { return real().exists(path); }
  bool is_folder(const std::string& path) const override { return real().is_folder(path); }
  std::string identity(const std::string& path) const override { return real().identity(path); }
  std::shared_ptr<void> lock(const std::string& path) override { return real().lock(path); }

 private:
  static detail::FileOps& real() { return detail::posix_files(); }
};

}  // namespace fsdp::testing
