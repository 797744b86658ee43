// Tags mark memory as ours: they lead from a tensor to its unit in a few instructions.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>

namespace fsdp::detail {

class WatchedRegion;

// The contents of a marked storage.
enum class TagKind : uint8_t {
  parameter,   // a module's parameters: gathered, or released
  shard,       // this rank's part of the parameters: optimizers write it
  gradient,    // the gradient shard
  moment,      // an optimizer's: updates may be promised (Note [Offload]), saves may read it
  magnitudes,  // absolute values of a gradient slice, made by an operator; without a region
};

// Note [Marked memory]
// A storage is ours when its DataPtr has our deleter; its context is the Tag. So the observer finds the unit
// of an operator's input without a table. The tag is counted: it outlives a model that is dropped before its
// module, and then has no region.
//
// Threads: a program may read a gradient that it kept, or drop it, on one thread while the next backward
// gives the region a new tag on another. So a reader loads `region` once and uses that copy. The memory that
// the storage owned goes with the last storage, which still holds its reference then.
struct Tag {
  TagKind kind;
  std::atomic<WatchedRegion*> region;   // null if the region has another tag or is gone, and for magnitudes
  std::atomic<int64_t> references = 1;  // one of the handle and one of each storage
  std::atomic<int64_t> storages = 0;
  at::DataPtr memory = {};  // the memory that the storage owned before; goes with the last storage
};

class TagHandle {
 public:
  TagHandle() = default;
  TagHandle(TagKind kind, WatchedRegion* region);
  ~TagHandle();
  TagHandle(TagHandle&& other) noexcept;
  TagHandle& operator=(TagHandle&& other) noexcept;

  // A pointer with this tag as its context. It does not own the memory.
  at::DataPtr point(void* data, c10::Device device) const;
  Tag& operator*() const { return *tag_; }

 private:
  Tag* tag_ = nullptr;
};

// A storage with this tag is gone.
void drop_tag(void* tag);

// The tag of a storage, or null.
inline Tag* tag_of(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().cast_context<Tag>(&drop_tag);
}
inline Tag* tag_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  return tag_of(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

// The region of a tensor whose storage holds `kind`, or null.
inline WatchedRegion* region_of(const at::Tensor& tensor, TagKind kind) {
  const Tag* tag = tag_of(tensor);
  return tag != nullptr && tag->kind == kind ? tag->region.load() : nullptr;
}

// Marks `tensor`'s storage and no other: the tag owns its memory from now on.
TagHandle mark(const at::Tensor& tensor, TagKind kind, WatchedRegion* region);

}  // namespace fsdp::detail
