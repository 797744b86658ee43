// The libFuzzer program of the parser of manifests.
#include <cstddef>
#include <cstdint>

#include "fuzz_files/parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdp::testing::fuzz_manifest({reinterpret_cast<const char*>(data), size});
  return 0;
}
