// Allocations that fail say what the model holds, and which options would make it fit.
#pragma once

#include <fsdp/memory_error.h>

#include <cstdint>
#include <exception>
#include <utility>

namespace fsdp::detail {

class Engine;

// Whether an allocator has no memory, and no report says so yet.
bool is_no_memory(const std::exception& error);

// The same error with a report. `purpose`: what the memory was for; `bytes`: 0 where that is not known.
MemoryError with_report(const Engine& engine, const char* purpose, int64_t bytes,
                        const std::exception& error);
// `error` of an operator, with a report where it is one of memory.
std::exception_ptr with_report(const Engine& engine, const std::exception_ptr& error);

// Returns what `allocate` does. Throws MemoryError where there is no memory.
template <class Fn>
auto with_memory_report(const Engine& engine, const char* purpose, int64_t bytes, Fn&& allocate) {
  try {
    return std::forward<Fn>(allocate)();
  } catch (const std::exception& error) {
    if (!is_no_memory(error)) throw;
    throw with_report(engine, purpose, bytes, error);
  }
}

}  // namespace fsdp::detail
