// Checks for uses of a sharded module that would go wrong silently.
#pragma once

#include <fsdp/comm.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "runtime/model.h"

namespace fsdp::detail {

// Throws if a parameter cannot be sharded: it is not dense, or of a type that cannot be communicated.
void check_type(const at::Tensor& tensor, const std::string& name);

// Makes the backward of graphs that `tensor` was part of before sharding throw. New graphs are unaffected.
void refuse_old_graphs(const at::Tensor& tensor, const std::string& name);

// Throws if the module's tensor is no longer the view that sharding made of it, or its slice has hooks, which
// autograd would not call.
void check_parameter(const UnitParam& param);

// The parameters registered in `module` and below it.
RegisteredParams registered_params(const torch::nn::Module& module);
// Throws if the parameters registered in `module` are not `known`.
void check_tree(const torch::nn::Module& module, const RegisteredParams& known);

// Returns whether all ranks were given the same tensors. Collective.
bool batches_are_equal(Comm& comm, c10::Device device, const std::vector<at::Tensor>& arguments);

}  // namespace fsdp::detail
