// The version of this library.
#pragma once

namespace fsdp {

// "major.minor.patch", for example "0.1.0": a string literal. Ranks of one run must have the same.
const char* version();

}  // namespace fsdp
