#include "watch/tag.h"

#include <atomic>
#include <utility>

namespace fsdp::detail {

namespace {

// Storages are dropped on any thread.
void add_reference(Tag& tag) { std::atomic_ref(tag.references).fetch_add(1); }

}  // namespace

void drop_tag(void* context) {
  auto* tag = static_cast<Tag*>(context);
  const int64_t before = std::atomic_ref(tag->references).fetch_sub(1);
  if (before == 1)
    delete tag;
  else if (before == 2 && tag->region != nullptr)
    tag->memory.clear();  // only the handle is left: no storage needs the memory
}

TagHandle::TagHandle(TagKind kind, WatchedRegion* region)
    : tag_(new Tag{.kind = kind, .region = region, .references = 1}) {}

TagHandle::~TagHandle() {
  if (tag_ == nullptr) return;
  tag_->region = nullptr;
  drop_tag(tag_);
}

TagHandle::TagHandle(TagHandle&& other) noexcept : tag_(std::exchange(other.tag_, nullptr)) {}

TagHandle& TagHandle::operator=(TagHandle&& other) noexcept {
  std::swap(tag_, other.tag_);
  return *this;
}

at::DataPtr TagHandle::point(void* data, c10::Device device) const {
  add_reference(*tag_);
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
