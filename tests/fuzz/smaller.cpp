#include "fuzz/smaller.h"

#include <algorithm>
#include <chrono>

namespace fsdp::fuzz {

Program smaller(Program program, const std::function<bool(const Program&)>& fails) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (size_t chunk = 16; chunk > 0; chunk /= 2) {
    for (size_t i = 0; i < program.actions.size() && std::chrono::steady_clock::now() < end;) {
      Program less = program;
      const auto from = less.actions.begin() + static_cast<std::ptrdiff_t>(i);
      const auto n = std::min(chunk, less.actions.size() - i);
      less.actions.erase(from, from + static_cast<std::ptrdiff_t>(n));
      if (fails(less))
        program = less;
      else
        i += chunk;
    }
  }
  return program;
}

}  // namespace fsdp::fuzz
