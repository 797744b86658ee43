// Reads a torch::nn::Module into the tree of modules that the layout needs, and the tensors behind it.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "layout/module_tree.h"

namespace fsdp::detail {

// One parameter, which may be registered under several names.
struct FoundParam {
  at::Tensor tensor;
  std::vector<std::string> names;
};

struct WalkedModule {
  ModuleDecl root;
  std::vector<FoundParam> params;  // by ParamId
};

// Finds every parameter once, in order of definition.
WalkedModule walk_module(torch::nn::Module& module);

// "GPT2BlockImpl" of "fsdp::models::GPT2BlockImpl".
std::string short_type(const torch::nn::Module& module);

// Throws if a tensor that is no parameter of the module shares memory with one.
void check_unshared(const WalkedModule& walked);

}  // namespace fsdp::detail
