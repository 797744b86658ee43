// A model as the layout sees it: modules with names and types, parameters with shapes. No tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::detail {

// What kind of element: a number that tells kinds apart, its size, and whether precision options apply to it.
struct ElementType {
  int16_t code = 0;
  int16_t bytes = 4;
  bool floating = true;

  bool operator==(const ElementType&) const = default;
};

using ParamId = int32_t;

// One parameter. Tied parameters, which are one tensor under several names, have one id.
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
  std::vector<ParamDecl> params;  // its own, not those of children
  std::vector<ModuleDecl> children;
  // The module itself, for policies that ask for a C++ type; never dereferenced here.
  const void* origin = nullptr;
};

// The ids of all parameters that are named by a path or lie in the module with that path or below it, each
// once, in order of definition; "" is the root. A tied parameter counts by any of its names. Throws
// std::invalid_argument for a path that names nothing, with the names nearest to it.
std::vector<ParamId> params_under(const ModuleDecl& root, const std::vector<std::string>& paths);

}  // namespace fsdp::detail
