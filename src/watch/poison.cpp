#include "watch/poison.h"

namespace fsdp::detail {

c10::Storage make_poison(const TagHandle* tag, c10::Device device, size_t bytes, const std::string& message) {
  at::DataPtr nowhere = tag != nullptr ? tag->point(nullptr, device) : at::DataPtr(nullptr, device);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       std::move(nowhere), nullptr, /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return c10::Storage(std::move(storage));
}

}  // namespace fsdp::detail
