#include "comm/local/local.h"

#include <sys/mman.h>

#include <charconv>
#include <new>

#include "comm/shared/shared_backend.h"

namespace fsdp::detail {

namespace {

// Pages of this process. They come zeroed, and untouched ones cost nothing.
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

// The ticket is the address of a SegmentPtr that the creator keeps until all threads have copied it.
class ThreadSource final : public SegmentSource {
 public:
  Export create(size_t bytes) override {
    auto holder = std::make_shared<SegmentPtr>(std::make_shared<PrivatePages>(bytes));
    return {.segment = *holder,
            .ticket = std::to_string(reinterpret_cast<uintptr_t>(holder.get())),
            .keep = holder};
  }

  SegmentPtr attach(const std::string& ticket, size_t /*bytes*/) override {
    uintptr_t address = 0;
    std::from_chars(ticket.data(), ticket.data() + ticket.size(), address);
    return *reinterpret_cast<const SegmentPtr*>(address);
  }
};

}  // namespace

bool local_available() { return true; }

std::unique_ptr<CommBackend> make_local(const GroupInfo& info) {
  return make_shared_backend("local", info, std::make_unique<ThreadSource>(), nullptr);
}

}  // namespace fsdp::detail
