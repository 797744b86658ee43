#include "support/kill_files.h"

#include <fsdp/error.h>
#include <unistd.h>

#include <csignal>

namespace fsdp::testing {

using When = KillPoint::When;

struct KillFiles::Counter {
  KillPoint point;
  Strike strike;
  Count count;
  int64_t operations = 0;
  bool struck = false;

  void hit(const std::string& doing, const std::string& path) {
    struck = true;
    strike(doing, path);
  }
  bool is_at(When when) const { return operations == point.operation && point.when == when; }

  template <class Call>
  auto change(const char* doing, const std::string& path, Call call) {
    struct Done {
      Counter& counter;
      ~Done() { ++counter.operations; }
    } done{*this};
    if (is_at(When::before)) hit(doing, path);
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      if (is_at(When::after)) hit(doing, path);
    } else {
      auto result = call();
      if (is_at(When::after)) hit(doing, path);
      return result;
    }
  }

  template <class Call>
  auto read(const char* doing, const std::string& path, Call call) {
    return count == Count::reads_too ? change(doing, path, call) : call();
  }
};

class KillFile final : public detail::OpenFile {
 public:
  KillFile(detail::FilePtr file, std::shared_ptr<KillFiles::Counter> counter, std::string path)
      : file_(std::move(file)), counter_(std::move(counter)), path_(std::move(path)) {}

  void write(std::span<const std::byte> bytes, int64_t offset) override {
    counter_->change("write", path_, [&] {
      if (counter_->is_at(When::torn)) {
        const double part = static_cast<double>(bytes.size()) * counter_->point.part;
        file_->write(bytes.first(static_cast<size_t>(part)), offset);
        counter_->hit("write", path_);
      }
      file_->write(bytes, offset);
    });
  }
  void read(std::span<std::byte> bytes, int64_t offset) const override {
    counter_->read("read", path_, [&] { file_->read(bytes, offset); });
  }
  int64_t size() const override {
    return counter_->read("look at", path_, [&] { return file_->size(); });
  }
  void sync() override {
    counter_->change("sync", path_, [&] { file_->sync(); });
  }
  void close() override {
    counter_->change("close", path_, [&] { file_->close(); });
  }

 private:
  detail::FilePtr file_;
  std::shared_ptr<KillFiles::Counter> counter_;
  std::string path_;
};

KillFiles::KillFiles(detail::FileOps& files, KillPoint point, Strike strike, Count count)
    : files_(files),
      counter_(
          std::make_shared<Counter>(Counter{.point = point, .strike = std::move(strike), .count = count})) {}

KillFiles::Strike KillFiles::kill() {
  return [](const std::string& /*doing*/, const std::string& /*path*/) { ::kill(::getpid(), SIGKILL); };
}

KillFiles::Strike KillFiles::fail(int code) {
  return [code](const std::string& doing, const std::string& path) { throw IoError(doing, path, code); };
}

int64_t KillFiles::operations() const { return counter_->operations; }
bool KillFiles::struck() const { return counter_->struck; }

detail::FilePtr KillFiles::create(const std::string& path) {
  return counter_->change("create", path, [&]() -> detail::FilePtr {
    return std::make_unique<KillFile>(files_.create(path), counter_, path);
  });
}
detail::FilePtr KillFiles::open(const std::string& path) const {
  return counter_->read("open", path, [&]() -> detail::FilePtr {
    return std::make_unique<KillFile>(files_.open(path), counter_, path);
  });
}
void KillFiles::make_folders(const std::string& path) {
  counter_->change("make folder", path, [&] { files_.make_folders(path); });
}
void KillFiles::make_folder(const std::string& path) {
  counter_->change("make folder", path, [&] { files_.make_folder(path); });
}
void KillFiles::rename(const std::string& from, const std::string& to) {
  counter_->change("rename", from, [&] { files_.rename(from, to); });
}
void KillFiles::sync_folder(const std::string& path) {
  counter_->change("sync folder", path, [&] { files_.sync_folder(path); });
}
void KillFiles::remove_file(const std::string& path) {
  counter_->change("remove", path, [&] { files_.remove_file(path); });
}
void KillFiles::remove_folder(const std::string& path) {
  counter_->change("remove folder", path, [&] { files_.remove_folder(path); });
}
std::vector<std::string> KillFiles::list(const std::string& path) const {
  return counter_->read("list", path, [&] { return files_.list(path); });
}
bool KillFiles::exists(const std::string& path) const {
  return counter_->read("look at", path, [&] { return files_.exists(path); });
}
bool KillFiles::is_folder(const std::string& path) const {
  return counter_->read("look at", path, [&] { return files_.is_folder(path); });
}
bool KillFiles::is_link(const std::string& path) const { return files_.is_link(path); }
std::shared_ptr<void> KillFiles::lock(const std::string& path) {
  return counter_->change("lock", path, [&] { return files_.lock(path); });
}

}  // namespace fsdp::testing
