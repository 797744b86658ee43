// The version of this library.
#pragma once

namespace fsdp {

// "major.minor.patch", for example "0.1.0". Ranks of one run must agree on it.
const char* version();

}  // namespace fsdp
