#include "watch/address_range.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace fsdp::detail {

AddressRange::AddressRange(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(data != MAP_FAILED, "fsdp: could not reserve ", bytes,
              " bytes of addresses for a unit (no memory, only addresses): ", std::strerror(errno),
              ". Raise the limit on address space (ulimit -v unlimited), or shard over more ranks or with "
              "smaller units (ShardOptions::wrap)");
  data_ = data;
}

AddressRange::~AddressRange() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

AddressRange::AddressRange(AddressRange&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace fsdp::detail
