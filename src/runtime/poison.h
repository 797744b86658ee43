// Storages that throw our words when their data is read.
//
// Note [Errors from the observer]
// LibTorch swallows what an observer throws. To make an operator fail, its input gets a storage for the time
// of the call that throws when the kernel asks for its data. The same storage stands in a module's parameter
// while it is sharded, so that what is no operator (data_ptr(), torch::save) is answered in words as well.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "runtime/tag.h"

namespace fsdp::detail {

// Any look at the data throws c10::Error with `message`. Marked with `tag`, so that the observer still knows
// it.
c10::Storage make_poison(const TagHandle* tag, c10::Device device, size_t bytes, const std::string& message);

// Tensors whose storage was exchanged; they get their own back when this is destroyed.
class Exchanged {
 public:
  Exchanged() = default;
  ~Exchanged();
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;

  void exchange(const at::Tensor& tensor, const c10::Storage& storage);

 private:
  std::vector<std::pair<at::Tensor, c10::Storage>> tensors_;
};

}  // namespace fsdp::detail
