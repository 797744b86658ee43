#include "comm/local/local.h"

#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "comm/shared/shared_backend.h"

namespace fsdp::detail {

namespace {

// Pages of this process. They are zeroed, and untouched ones cost nothing.
class PrivatePages final : public Segment {
 public:
  explicit PrivatePages(size_t bytes) : size_(bytes) {
    data_ =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~PrivatePages() override { ::munmap(data_, size_); }
  PrivatePages(const PrivatePages&) = delete;
  PrivatePages& operator=(const PrivatePages&) = delete;

  char* data() const override { return static_cast<char*>(data_); }
  size_t size() const override { return size_; }

 private:
  void* data_;
  size_t size_;
};

// Segments that a rank has made and another may still attach. A late rank finds no segment instead of freed
// memory.
class Exports {
 public:
  std::string add(const SegmentPtr& segment) {
    const std::lock_guard lock(mutex_);
    std::erase_if(segments_, [](const auto& entry) { return entry.second.expired(); });
    segments_[++last_] = segment;
    return std::to_string(last_);
  }

  SegmentPtr find(const std::string& ticket) {
    const std::lock_guard lock(mutex_);
    const auto it = segments_.find(std::strtoull(ticket.c_str(), nullptr, 10));
    return it == segments_.end() ? nullptr : it->second.lock();
  }

 private:
  std::mutex mutex_;
  uint64_t last_ = 0;
  std::map<uint64_t, std::weak_ptr<Segment>> segments_;
};

Exports& exports() {
  static Exports all;
  return all;
}

class ThreadSource final : public SegmentSource {
 public:
  Export create(size_t bytes) override {
    auto segment = std::make_shared<PrivatePages>(bytes);
    return {.segment = segment, .ticket = exports().add(segment), .keep = segment};
  }

  SegmentPtr attach(const std::string& ticket, size_t /*bytes*/) override {
    SegmentPtr segment = exports().find(ticket);
    if (!segment) throw Error("the rank that made this memory has given up");
    return segment;
  }
};

}  // namespace

bool local_available() { return true; }

std::unique_ptr<CommBackend> make_local(const GroupInfo& info) {
  return make_shared_backend("local", info, std::make_unique<ThreadSource>(), nullptr);
}

}  // namespace fsdp::detail
