// Addresses with nothing behind them: reading or writing there ends the process instead of returning garbage.
#pragma once

#include <cstddef>

namespace fsdp::detail {

class AddressRange {
 public:
  AddressRange() = default;
  explicit AddressRange(size_t bytes);
  ~AddressRange();
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fsdp::detail
