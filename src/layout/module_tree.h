// The model that the layout works on: modules with names and types, parameters with shapes. No tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::detail {

// An element type: a code that tells types apart, its size, and whether precision options apply to it.
struct ElementType {
  int16_t code = 0;
  int16_t bytes = 4;
  bool floating = true;

  bool operator==(const ElementType&) const = default;
};

using ParamId = int32_t;

// One parameter. Tied parameters are one tensor under several names, and have one id.
struct ParamDecl {
  ParamId id = 0;
  std::string name;  // the full path, "h.0.attn.weight"
  std::vector<int64_t> shape;
  ElementType type;
  bool trainable = true;

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    return n;
  }
};

struct ModuleDecl {
  std::string path;               // "" for the root
  std::string type;               // "BlockImpl"
  std::vector<ParamDecl> params;  // its own, without those of children
  std::vector<ModuleDecl> children;
  // The module itself, for policies that ask for a C++ type; never dereferenced here.
  const void* origin = nullptr;
};

// The ids of all parameters that a path names or that lie in or below the module with that path, each once,
// in order of definition; "" is the root. A tied parameter counts by any of its names. Throws
// std::invalid_argument, with the nearest names, for a path that names nothing.
std::vector<ParamId> params_under(const ModuleDecl& root, const std::vector<std::string>& paths);

}  // namespace fsdp::detail
