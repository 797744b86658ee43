#include "comm/nccl/registered_memory.h"

#include <utility>

namespace fsdp::detail {

namespace {

// The context of a storage's memory, which is told before the memory is freed.
struct HeldMemory {
  c10::DataPtr memory;
  std::function<void()> before_free;

  static void drop(void* held) {
    const std::unique_ptr<HeldMemory> owned(static_cast<HeldMemory*>(held));
    owned->before_free();
  }
};

}  // namespace

void RegisteredMemory::add(const at::Tensor& block) {
  if (block.numel() == 0) return;
  c10::StorageImpl& storage = *block.storage().unsafeGetStorageImpl();
  void* memory = storage.mutable_data();
  const c10::Device device = block.device();
  bool registered = false;
  {
    const std::lock_guard lock(mutex_);
    for (NcclCommunicator* comm : comms_)
      registered = comm->register_memory(memory, storage.nbytes()) || registered;
  }
  if (!registered) return;
  auto held = std::make_unique<HeldMemory>();
  held->before_free = [self = shared_from_this(), memory] { self->remove(memory); };
  HeldMemory* context = held.get();
  context->memory = storage.set_data_ptr(c10::DataPtr(memory, held.release(), &HeldMemory::drop, device));
}

// Called when memory is freed, which cannot throw: the next user of a failed device gets the error.
void RegisteredMemory::remove(void* memory) {
  const std::lock_guard lock(mutex_);
  if (comms_.empty()) return;
  try {
    settle_();
  } catch (const std::exception&) {
    return;
  }
  for (NcclCommunicator* comm : comms_) comm->deregister_memory(memory);
}

void RegisteredMemory::leave() {
  const std::lock_guard lock(mutex_);
  comms_.clear();
}

}  // namespace fsdp::detail
