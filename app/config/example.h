// The config file built in.
#pragma once

namespace fsdp::config {

// Commented YAML. `fsdp config --example` prints it; it is read where there is no other, and its presets and
// model configs are known in every file that does not define one of the same name.
const char* example_config();

inline constexpr const char* kExampleName = "built-in config";

}  // namespace fsdp::config
