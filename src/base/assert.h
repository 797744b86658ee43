// FSDP_ASSERT checks the library's own invariants in debug and sanitizer builds (NDEBUG is always set: see
// docs/design.md).
#pragma once

#include <stdexcept>
#include <string>

#if defined(FSDP_ASSERTS) && FSDP_ASSERTS
#define FSDP_ASSERT(condition)                                                                            \
  do {                                                                                                    \
    if (!(condition))                                                                                     \
      throw std::logic_error(std::string("fsdp bug: " #condition " does not hold in ") + __FILE__ + ":" + \
                             std::to_string(__LINE__));                                                   \
  } while (false)
#else
#define FSDP_ASSERT(condition) \
  do {                         \
  } while (false)
#endif
