// The control block of a group whose ranks live in one test.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>

#include "comm/shared/control.h"

namespace fsdp::detail {

// Zeroed memory of this process, aligned to a page.
class HeapSegment final : public Segment {
 public:
  explicit HeapSegment(size_t bytes)
      : size_((bytes + kPage - 1) / kPage * kPage),
        data_(static_cast<char*>(std::aligned_alloc(kPage, size_)), &std::free) {
    std::memset(data_.get(), 0, size_);
  }
  char* data() const override { return data_.get(); }
  size_t size() const override { return size_; }

 private:
  static constexpr size_t kPage = 4096;
  size_t size_;
  std::unique_ptr<char, decltype(&std::free)> data_;
};

inline ControlView make_control(int ranks) {
  return {std::make_shared<HeapSegment>(ControlView::bytes(ranks)), ranks};
}

}  // namespace fsdp::detail
