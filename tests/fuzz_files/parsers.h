// What a fuzzer asks of the parsers of files that nobody vouches for: CheckpointError or a sound result,
// nothing else. Anything else leaves these functions as an exception or ends the process.
#pragma once

#include <string_view>

namespace fsdp::testing {

// `input` as a safetensors file, and, behind two bytes that say how many bytes of data follow, as its header.
void fuzz_safetensors(std::string_view input);

// `input` as a manifest, with the hash it must have.
void fuzz_manifest(std::string_view input);

}  // namespace fsdp::testing
