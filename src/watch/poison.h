// Storages that throw our message when their data is read.
//
// They stand in for a module's parameters while these are sharded, so that accesses that are no operator
// (data_ptr(), torch::save) also get a message.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "watch/tag.h"

namespace fsdp::detail {

// Any access to the data throws c10::Error with `message`. Marked with `tag`, so that the observer still
// knows it.
c10::Storage make_poison(const TagHandle* tag, c10::Device device, size_t bytes, const std::string& message);

}  // namespace fsdp::detail
