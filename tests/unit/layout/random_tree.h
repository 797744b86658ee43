// Random models for the layout's property tests: modules of three types, parameters of three element types,
// frozen, tied, scalar and empty ones among them.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "layout/units.h"

namespace fsdp::testing {

class RandomTree {
 public:
  explicit RandomTree(std::mt19937& random) : random_(random) {}

  detail::ModuleDecl grow(int depth, const std::string& path = "") {
    detail::ModuleDecl module{
        .path = path, .type = "T" + std::to_string(random_() % 3), .params = {}, .children = {}};
    for (size_t i = random_() % 3; i > 0; --i)
      module.params.push_back(next_param(below(path, "p" + std::to_string(i))));
    if (depth == 0) return module;
    const bool alike = random_() % 3 == 0;  // the same draws again: repeated blocks, but for ties
    const size_t children = random_() % 4;
    const std::mt19937 before = random_;
    for (size_t i = 0; i < children; ++i) {
      if (alike) random_ = before;
      module.children.push_back(grow(depth - 1, below(path, std::to_string(i))));
    }
    return module;
  }

  // Each once, tied ones by their first name; the id is the index.
  const std::vector<detail::ParamDecl>& params() const { return params_; }

 private:
  static std::string below(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  detail::ParamDecl next_param(std::string name) {
    if (!params_.empty() && random_() % 6 == 0) {
      detail::ParamDecl tied = params_[random_() % params_.size()];
      tied.name = std::move(name);
      return tied;
    }
    constexpr detail::ElementType kTypes[] = {{6, 4}, {15, 2}, {0, 1}};
    detail::ParamDecl param{.id = static_cast<detail::ParamId>(params_.size()),
                            .name = std::move(name),
                            .shape = {},
                            .type = kTypes[random_() % 3],
                            .trainable = random_() % 4 != 0};
    const size_t extents = random_() % 4 ? 12 : 40;
    for (size_t d = random_() % 4; d > 0; --d)
      param.shape.push_back(static_cast<int64_t>(random_() % extents));
    params_.push_back(param);
    return param;
  }

  std::mt19937& random_;
  std::vector<detail::ParamDecl> params_;
};

inline std::vector<detail::UnitPolicy> all_policies(std::mt19937& random, const detail::ModuleDecl& root) {
  return {detail::wrap_none(), detail::wrap_by_size(static_cast<int64_t>(random() % 500)),
          detail::wrap_by_type({"T1"}), detail::wrap_automatic(root)};
}

inline detail::UnitSizes random_sizes(std::mt19937& random) {
  return {.min_bytes = static_cast<int64_t>(random() % 3000),
          .max_bytes = random() % 2 ? static_cast<int64_t>(300 + random() % 3000) : 0};
}

// Some of the names below the root.
inline std::vector<std::string> random_paths(std::mt19937& random, const detail::ModuleDecl& root) {
  std::vector<std::string> paths;
  for (const detail::ParamDecl& param : root.params)
    if (random() % 12 == 0) paths.push_back(param.name);
  for (const detail::ModuleDecl& child : root.children) {
    if (random() % 12 == 0) paths.push_back(child.path);
    for (std::string& path : random_paths(random, child)) paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace fsdp::testing
