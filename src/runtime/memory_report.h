// Reports for failed allocations: what the model holds, and the options that would make it fit.
#pragma once

#include <fsdp/memory_error.h>

#include <cstdint>
#include <exception>
#include <utility>

namespace fsdp::detail {

class Engine;

// True if `error` is an allocator's out-of-memory error without a report yet.
bool is_no_memory(const std::exception& error);

// The same error with a report. `purpose`: what the memory was for; `bytes`: 0 if unknown.
MemoryError with_report(const Engine& engine, const char* purpose, int64_t bytes,
                        const std::exception& error);
// `error` of an operator, with a report if it is an out-of-memory error.
std::exception_ptr with_report(const Engine& engine, const std::exception_ptr& error);

// Returns allocate(). Throws MemoryError if there is not enough memory.
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
