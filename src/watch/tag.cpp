#include "watch/tag.h"

#include <utility>

namespace fsdp::detail {

namespace {

void drop_reference(Tag* tag) {
  if (tag->references.fetch_sub(1) == 1) delete tag;
}

}  // namespace

void drop_tag(void* context) {
  auto* tag = static_cast<Tag*>(context);
  if (tag->storages.fetch_sub(1) == 1) tag->memory.clear();
  drop_reference(tag);
}

TagHandle::TagHandle(TagKind kind, WatchedRegion* region) : tag_(new Tag{.kind = kind, .region = region}) {}

TagHandle::~TagHandle() {
  if (tag_ == nullptr) return;
  tag_->region = nullptr;
  drop_reference(tag_);
}

TagHandle::TagHandle(TagHandle&& other) noexcept : tag_(std::exchange(other.tag_, nullptr)) {}

TagHandle& TagHandle::operator=(TagHandle&& other) noexcept {
  std::swap(tag_, other.tag_);
  return *this;
}

at::DataPtr TagHandle::point(void* data, c10::Device device) const {
  ++tag_->references;
  ++tag_->storages;
  return {data, tag_, &drop_tag, device};
}

TagHandle mark(const at::Tensor& tensor, TagKind kind, WatchedRegion* region) {
  TagHandle tag(kind, region);
  c10::StorageImpl& storage = *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  void* data = storage._mutable_data_ptr_no_checks().get();
  (*tag).memory = storage.set_data_ptr(tag.point(data, storage.device()));
  return tag;
}

}  // namespace fsdp::detail
