// A file system that fails, or ends its process, at a chosen operation.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "files/file_ops.h"

namespace fsdp::testing {

// Where something happens: before the operation with this number (from 0), after it, or, of a write, after
// `part` of its bytes.
struct KillPoint {
  enum class When { before, torn, after };

  int64_t operation = -1;  // none
  When when = When::before;
  double part = 0.5;
};

// Numbers the operations on `files` and strikes at one of them.
class KillFiles final : public detail::FileOps {
 public:
  using Strike = std::function<void(const std::string& doing, const std::string& path)>;
  enum class Count { changes, reads_too };

  KillFiles(detail::FileOps& files, KillPoint point, Strike strike, Count count = Count::changes);

  // Ends this process by SIGKILL.
  static Strike kill();
  // Throws IoError.
  static Strike fail(int code);

  int64_t operations() const;
  bool struck() const;

  detail::FilePtr create(const std::string& path) override;
  detail::FilePtr open(const std::string& path) const override;
  void make_folders(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void sync_folder(const std::string& path) override;
  void remove_file(const std::string& path) override;
  void remove_folder(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) const override;
  bool exists(const std::string& path) const override;
  bool is_folder(const std::string& path) const override;
  bool is_link(const std::string& path) const override;
  std::shared_ptr<void> lock(const std::string& path) override;

 private:
  friend class KillFile;
  struct Counter;

  detail::FileOps& files_;
  std::shared_ptr<Counter> counter_;
};

}  // namespace fsdp::testing
