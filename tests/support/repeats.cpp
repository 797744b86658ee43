#include "support/repeats.h"

#include <cstdlib>
#include <iostream>
#include <string>

namespace fsdp::testing {

int repeats(int sample, int full) {
  const char* asked = std::getenv("FSDP_LONG");
  return asked != nullptr && std::string(asked) == "1" ? full : sample;
}

unsigned seed() {
  const char* asked = std::getenv("FSDP_SEED");
  const unsigned value = asked != nullptr ? static_cast<unsigned>(std::strtoul(asked, nullptr, 10)) : 1;
  std::cout << "seed " << value << " (set FSDP_SEED to change it)\n";
  return value;
}

}  // namespace fsdp::testing
