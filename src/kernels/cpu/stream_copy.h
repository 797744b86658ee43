// Copies into memory that another core will read next.
#pragma once

#include <cstddef>

namespace fsdp::detail {

// Like memcpy, and complete on return. Large copies go past the cache (non-temporal stores), which saves
// reading the target first.
void stream_copy(void* dst, const void* src, size_t bytes);

}  // namespace fsdp::detail
